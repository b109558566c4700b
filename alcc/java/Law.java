// SPDX-License-Identifier: Apache-2.0
package reinet.alcc;

/** Decides how many frames may be in flight. A stream calls it under its own lock, with times of {@link Wire#nowUs}. */
public interface Law {
  /** Takes note that so many are out now. */
  void onSent(int inFlightFrames);

  /** Takes what an ACK told: how many frames came, the sum of their round trips, and the lowest of these. */
  void onAck(long nowUs, int frames, long sumUs, long lowestUs);

  /** Returns the frames that may be in flight. */
  int windowFrames();

  /** A window that never moves. */
  final class Fixed implements Law {
    private final int frames;

    public Fixed(int frames) {
      this.frames = frames;
    }

    @Override
    public void onSent(int inFlightFrames) {}

    @Override
    public void onAck(long nowUs, int frames, long sumUs, long lowestUs) {}

    @Override
    public int windowFrames() {
      return frames;
    }
  }

  /** Returns plain TCP: no window but the kernel's. */
  static Law none() {
    return new Fixed(Integer.MAX_VALUE);
  }
}
