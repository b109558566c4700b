// SPDX-License-Identifier: Apache-2.0
package reinet.alcc;

/** Decides how many frames may be in flight. A stream calls it under its own lock, with times of {@link Wire#nowUs}. */
public interface Law {
  /** Takes an ACK: the round trip of the last frame that it acknowledges. */
  void onAck(long nowUs, long rttUs);

  /** Moves to now; called before each decision and while frames are waited for. Returns frames that may be in flight. */
  int windowFrames(long nowUs, int inFlightFrames);

  /** Returns when the window may next change by time alone, Long.MAX_VALUE where it never does. */
  long nextUs();

  /** A window that never moves. */
  final class Fixed implements Law {
    private final int frames;

    Fixed(int frames) {
      this.frames = frames;
    }

    @Override
    public void onAck(long nowUs, long rttUs) {}

    @Override
    public int windowFrames(long nowUs, int inFlightFrames) {
      return frames;
    }

    @Override
    public long nextUs() {
      return Long.MAX_VALUE;
    }
  }

  /** Returns plain TCP: no window but the kernel's. */
  static Law none() {
    return new Fixed(Integer.MAX_VALUE);
  }
}
