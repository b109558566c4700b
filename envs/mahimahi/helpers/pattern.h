// SPDX-License-Identifier: Apache-2.0
//
// The bytes that reinet-sender sends and reinet-receiver checks: byte o of the stream is block[o % PATTERN_BYTES].
// The block's length is prime, so a lost, repeated or moved segment of any size cannot go unseen.
#ifndef REINET_PATTERN_H
#define REINET_PATTERN_H

#include <stdint.h>
#include <string.h>

#define PATTERN_BYTES 65521

// Two blocks in a row, so that a whole block can be read from any start.
static inline const unsigned char *pattern(void) {
  static unsigned char blocks[2 * PATTERN_BYTES];
  if (!blocks[0]) {
    uint32_t x = 2463534242u;  // xorshift32; any seed would do
    for (int i = 0; i < PATTERN_BYTES; i++) {
      x ^= x << 13;
      x ^= x >> 17;
      x ^= x << 5;
      blocks[i] = (unsigned char)(x | 1);
    }
    memcpy(blocks + PATTERN_BYTES, blocks, PATTERN_BYTES);
  }
  return blocks;
}

#endif
