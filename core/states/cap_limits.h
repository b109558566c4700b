/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * What every cap keeps to, whoever decides it; plain C, which BPF and C++ include.
 */
#ifndef REINET_CAP_LIMITS_H
#define REINET_CAP_LIMITS_H

#define REINET_MIN_CAP_PKTS 4U /* the paper's; below it neither fast retransmit nor delayed ACKs work */

#endif
