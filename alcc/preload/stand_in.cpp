// SPDX-License-Identifier: Apache-2.0
//
// The library that LD_PRELOAD names: nothing but the name of the one with the hooks (alcc/CMakeLists.txt).
