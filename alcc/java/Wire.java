// SPDX-License-Identifier: Apache-2.0
package reinet.alcc;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;

/**
 * The bytes of both directions. All numbers are big-endian and unsigned.
 *
 * <pre>
 *   both begin with       "RJA1"
 *   sender to receiver    'D' number(4) length(2) payload      a frame of data; numbers count from 0 and wrap
 *                         'E' number(4) 0(2)                   the end: so many frames there were
 *   receiver to sender    'A' number(4) time_us(8)             all frames up to this one are here, by its own clock
 *                         'F' number(4) time_us(8)             all of them, and whoever reads has taken them
 * </pre>
 *
 * <p>The sender measures a frame's round trip by its own memory of when it went; the receiver's clock serves to tell
 * the way there from the way back. A connection that ends without 'E' was cut.
 */
final class Wire {
  static final byte[] MAGIC = {'R', 'J', 'A', '1'};
  static final byte DATA = 'D';
  static final byte END = 'E';
  static final byte ACK = 'A';
  static final byte FINISHED = 'F';
  static final int HEADER_BYTES = 7;
  static final int ANSWER_BYTES = 13;

  /** With its header, and the 22 bytes of a TLS 1.3 record, it fits into a segment of 1448 bytes. */
  static final int FRAME_BYTES = 1400;

  /** What a receiver takes: more than this sender makes, and little enough to keep. */
  static final int MOST_FRAME_BYTES = 16384;

  private Wire() {}

  static int header(byte[] to, int at, byte kind, int number, int length) {
    to[at] = kind;
    putInt(to, at + 1, number);
    to[at + 5] = (byte) (length >>> 8);
    to[at + 6] = (byte) length;
    return at + HEADER_BYTES;
  }

  static byte[] answer(byte kind, int number, long timeUs) {
    byte[] bytes = new byte[ANSWER_BYTES];
    bytes[0] = kind;
    putInt(bytes, 1, number);
    putInt(bytes, 5, (int) (timeUs >>> 32));
    putInt(bytes, 9, (int) timeUs);
    return bytes;
  }

  static void putInt(byte[] to, int at, int value) {
    for (int i = 0; i < 4; i++) to[at + i] = (byte) (value >>> (24 - 8 * i));
  }

  static int getInt(byte[] from, int at) {
    int value = 0;
    for (int i = 0; i < 4; i++) value = value << 8 | from[at + i] & 0xFF;
    return value;
  }

  static int getShort(byte[] from, int at) {
    return (from[at] & 0xFF) << 8 | from[at + 1] & 0xFF;
  }

  static long getLong(byte[] from, int at) {
    return (long) getInt(from, at) << 32 | getInt(from, at + 4) & 0xFFFFFFFFL;
  }

  /** Returns the clock of this process, in microseconds; it has no relation to any other's. */
  static long nowUs() {
    return System.nanoTime() / 1000;
  }

  /** The peer said what this protocol does not have; the message names what, and where. */
  static final class ProtocolException extends IOException {
    private static final long serialVersionUID = 1L;

    ProtocolException(String message) {
      super(message);
    }
  }

  /** Reads into one buffer that never grows; a read that timed out loses nothing of what came. */
  static final class Buffered {
    private final InputStream in;
    final byte[] bytes;
    int begin;
    int end;

    Buffered(InputStream in, int capacityBytes) {
      this.in = in;
      this.bytes = new byte[capacityBytes];
    }

    int size() {
      return end - begin;
    }

    /**
     * Reads once, at least a byte, and returns whether anything came; false is the peer's end. The caller leaves room:
     * what is complete is taken out before more is read. Throws SocketTimeoutException as the socket does.
     */
    boolean fill() throws IOException {
      if (begin > 0) {
        System.arraycopy(bytes, begin, bytes, 0, end - begin);
        end -= begin;
        begin = 0;
      }
      if (end == bytes.length) throw new IllegalStateException("the buffer is full of one frame");
      int got = in.read(bytes, end, bytes.length - end);
      if (got < 0) return false;
      end += got;
      return true;
    }

    /** Takes the peer's first bytes, once they are there; returns false until then. */
    boolean takeMagic(String whose) throws IOException {
      for (int i = 0; i < Math.min(size(), MAGIC.length); i++) {
        if (bytes[begin + i] != MAGIC[i]) {
          throw new ProtocolException(
              whose + " does not speak this protocol: it begins with byte " + (bytes[begin + i] & 0xFF)
                  + " at " + i + ", not with RJA1; is it another service's port?");
        }
      }
      if (size() < MAGIC.length) return false;
      begin += MAGIC.length;
      return true;
    }
  }

  static EOFException cut(String what) {
    return new EOFException(what);
  }
}
