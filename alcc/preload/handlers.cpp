// SPDX-License-Identifier: Apache-2.0
//
// What others have done around fork() (pthread_atfork). Before it the C library calls whoever registered last first:
// the gate registers before anybody else, so that its locks are taken when no other handler has to wait any more. A
// thread that holds what such a handler waits for may be in a write, and want one of them.
#include "alcc/base/real.hpp"
#include "alcc/gate/process.hpp"

#ifndef __SANITIZE_THREAD__  // which calls this before it is ready for what is built with it
namespace {

constinit reinet::alcc::Real<int (*)(void (*)(), void (*)(), void (*)(), void*)> real_register{"__register_atfork"};

}  // namespace

// What pthread_atfork calls, which every library has a copy of.
REINET_HOOK int __register_atfork(void (*prepare)(), void (*parent)(), void (*child)(), void* library) noexcept {
  if (!reinet::alcc::is_begun()) reinet::alcc::process();
  return real_register.get()(prepare, parent, child, library);
}
#endif
