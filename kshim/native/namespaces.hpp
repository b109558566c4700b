// SPDX-License-Identifier: Apache-2.0
// The network namespaces of this host, and work done inside them. Needs CAP_SYS_ADMIN; without it none is reached.
#pragma once

#include <chrono>
#include <functional>

namespace reinet {

using Deadline = std::chrono::steady_clock::time_point;

// Runs work in every network namespace but the caller's in which a thread lives or that is mounted (ip netns, container
// engines). Work runs in a thread that ends with this call: the caller's own namespace never changes. Namespaces that
// cannot be entered, or whose turn has not come at the deadline, are left out; returns false where it came too early.
bool in_inhabited_namespaces(const std::function<void()>& work, Deadline until);

// The same, and then in those that only descriptors of processes hold: of the namespace itself, or of a socket that was
// made in it. Looks at every descriptor on the host.
bool in_reachable_namespaces(const std::function<void()>& work, Deadline until);

}  // namespace reinet
