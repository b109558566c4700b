// SPDX-License-Identifier: Apache-2.0
package reinet.alcc;

import java.util.Random;

/**
 * A window that walks as Verus' would (MDI, Khan et al., CCR 2021): how the delay changed since the last epoch, how the
 * last epoch changed delay and window, and how far above its least the delay is, choose a row of a matrix of counts; the
 * row is a distribution of the window's next change, from which one is drawn.
 *
 * <p>Before that the window doubles with each epoch, until the delay is half above its least. It never exceeds twice
 * what was in flight, for what nobody used was not tried.
 */
public final class Mdi implements Law {
  static final int FIRST_FRAMES = 10; // as TCP's own
  static final int LEAST_FRAMES = 2; // one out and one at the receiver
  private static final double QUEUE_SEEN = 1.5; // times the least delay, where doubling ends
  private static final long MIN_RTT_US = 150_000_000; // the least delay is that of two such spans: paths change

  private static final long NEIGHBOUR_US = 1000; // as for the caps in the kernel (core/guard/gate.hpp)

  private final Matrix matrix;
  private final Random random;
  private double window = FIRST_FRAMES;
  private boolean doubling = true;
  private long beganUs = -1;
  private long rttSumUs;
  private int rtts;
  private int mostInFlight;
  private double lastDelayUs;
  private int lastDelayBin;
  private int lastWindowBin;
  private long leastUs = Long.MAX_VALUE;
  private long leastBeforeUs = Long.MAX_VALUE;
  private long spanBeganUs = -1;

  public Mdi(Matrix matrix, Random random) {
    this.matrix = matrix;
    this.random = random;
    lastDelayBin = Matrix.bin(1.0, matrix.delayRatios);
    lastWindowBin = Matrix.bin(1.0, matrix.windowRatios);
  }

  @Override
  public void onSent(int inFlightFrames) {
    mostInFlight = Math.max(mostInFlight, inFlightFrames);
  }

  @Override
  public void onAck(long nowUs, int frames, long sumUs, long lowestUs) {
    if (beganUs < 0) beganUs = spanBeganUs = nowUs;
    if (nowUs - spanBeganUs > MIN_RTT_US) {
      leastBeforeUs = leastUs;
      leastUs = Long.MAX_VALUE;
      spanBeganUs = nowUs;
    }
    leastUs = Math.min(leastUs, Math.max(1, lowestUs));
    rttSumUs += sumUs;
    rtts += frames;
    if (nowUs - beganUs < matrix.epochUs) return;
    endEpoch((double) rttSumUs / rtts);
    beganUs = nowUs;
    rttSumUs = 0;
    rtts = 0;
    mostInFlight = 0;
  }

  @Override
  public int windowFrames() {
    return Math.min(leastUs, leastBeforeUs) < NEIGHBOUR_US ? Flight.MOST_FRAMES : (int) window;
  }

  double window() {
    return window;
  }

  private void endEpoch(double delayUs) {
    double level = delayUs / Math.min(leastUs, leastBeforeUs);
    double before = window;
    if (doubling && level < QUEUE_SEEN) {
      window *= 2;
    } else {
      doubling = false;
      int delayBin = Matrix.bin(delayUs / lastDelayUs, matrix.delayRatios);
      int[] counts = matrix.counts(Matrix.bin(level, matrix.levels), delayBin, lastDelayBin, lastWindowBin);
      window *= draw(counts);
      lastDelayBin = delayBin;
    }
    window = Math.min(window, Math.max(2.0 * mostInFlight, FIRST_FRAMES));
    window = Math.min(Math.max(window, LEAST_FRAMES), Flight.MOST_FRAMES);
    lastWindowBin = Matrix.bin(window / before, matrix.windowRatios);
    lastDelayUs = delayUs;
  }

  private double draw(int[] counts) {
    int total = 0;
    for (int count : counts) total += count;
    if (total == 0) return 1.0; // never seen: stay
    int left = random.nextInt(total);
    int chosen = 0;
    while ((left -= counts[chosen]) >= 0) chosen++;
    return matrix.windowSteps[chosen];
  }
}
