// SPDX-License-Identifier: Apache-2.0
#ifndef REINET_USER_H
#define REINET_USER_H

// Who everything without rights inside a link's namespaces runs as; LINK_USER of namespace.py. A user of its own: what
// else runs as nobody (65534) on the host cannot touch a link, nor a link it. 65520 to 65533 lie between systemd's
// dynamic users and nobody, and distributions give them to nobody.
#define LINK_USER 65521

#endif
