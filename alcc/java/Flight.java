// SPDX-License-Identifier: Apache-2.0
package reinet.alcc;

/**
 * Which frames are out and since when, and what their round trips were. Its size is fixed: no peer, however slow, makes
 * it grow. Not safe for threads by itself.
 */
final class Flight {
  /** 23 MB of frames: more than any path here holds with the kernel's buffers; a sender without a window stops there. */
  static final int MOST_FRAMES = 1 << 14;

  private static final int MOST_MS = 10_000; // longer round trips count as this long

  private final long[] sentUs = new long[MOST_FRAMES];
  private final int[] bytes = new int[MOST_FRAMES];
  private final long[] rttsByMs = new long[MOST_MS + 1];
  private int first; // the oldest that is out
  private int next;
  private long rttSumUs;
  long sentBytes;
  long ackedBytes;
  long ackedFrames;
  private long leastRttUs = Long.MAX_VALUE;
  private long leastWayUs = Long.MAX_VALUE;
  private long wayAboveLeastSumUs;

  int frames() {
    return next - first;
  }

  int nextNumber() {
    return next;
  }

  void add(long nowUs, int payloadBytes) {
    int at = next & MOST_FRAMES - 1;
    sentUs[at] = nowUs;
    bytes[at] = payloadBytes;
    next++;
    sentBytes += payloadBytes;
  }

  /** Takes an ACK of all frames up to this number, and tells the law. Throws for a false one. */
  void acknowledge(int number, long nowUs, long theirUs, Law law) throws Wire.ProtocolException {
    int count = number - first + 1;
    if (count <= 0 || count > frames()) {
      throw new Wire.ProtocolException(
          "the receiver acknowledges frame " + Integer.toUnsignedLong(number) + ", but out are "
              + Integer.toUnsignedLong(first) + " to before " + Integer.toUnsignedLong(next));
    }
    long sumUs = 0;
    long rttUs = 0; // of the last, which is the lowest: it was sent last
    for (int i = 0; i < count; i++, first++) {
      int at = first & MOST_FRAMES - 1;
      rttUs = Math.max(0, nowUs - sentUs[at]);
      ackedBytes += bytes[at];
      sumUs += rttUs;
      rttsByMs[(int) Math.min(MOST_MS, rttUs / 1000)]++;
    }
    long wayUs = theirUs - nowUs + rttUs;
    ackedFrames += count;
    rttSumUs += sumUs;
    leastRttUs = Math.min(leastRttUs, rttUs);
    leastWayUs = Math.min(leastWayUs, wayUs);
    wayAboveLeastSumUs += count * (wayUs - leastWayUs);
    law.onAck(nowUs, count, sumUs, rttUs);
  }

  double rttLeastMs() {
    return ackedFrames == 0 ? 0 : leastRttUs / 1000.0;
  }

  double rttMeanMs() {
    return ackedFrames == 0 ? 0 : rttSumUs / 1000.0 / ackedFrames;
  }

  /** Returns the mean of what the way there took above its least, by both clocks, so without the way back. */
  double queueMeanMs() {
    return ackedFrames == 0 ? 0 : wayAboveLeastSumUs / 1000.0 / ackedFrames;
  }

  /** Returns the 95th percentile, to a millisecond. */
  long rttP95Ms() {
    long seen = 0;
    for (int ms = 0; ms <= MOST_MS; ms++) {
      seen += rttsByMs[ms];
      if (seen * 100 >= ackedFrames * 95) return ms;
    }
    return MOST_MS;
  }
}
