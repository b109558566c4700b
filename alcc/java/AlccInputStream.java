// SPDX-License-Identifier: Apache-2.0
package reinet.alcc;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.Socket;
import java.net.SocketTimeoutException;

/**
 * Reads what an {@link AlccOutputStream} sends, and acknowledges each frame as it comes in.
 *
 * <p>The end of the stream is the sender's own word that it sent all: a connection that was cut throws instead. It keeps
 * at most 64 KB, and reads no more until those were taken, so that who reads slowly slows the sender down. A read waits
 * for data as long as {@code silenceMs}, and so does an ACK that the sender does not take.
 */
public final class AlccInputStream extends InputStream {
  private static final int BUFFER_BYTES = 1 << 16;

  private final Socket socket;
  private final OutputStream out;
  private final int silenceMs;
  private final Wire.Buffered in;
  private final WriteGuard guard;
  private boolean greeted;
  private int checked; // how far after in.begin headers and frames are complete and were acknowledged
  private int number; // of the next frame to come
  private int payloadLeft; // of the frame that is being taken
  private boolean ended;
  private boolean closed;
  private long receivedBytes;
  private IOException failure;

  /** Takes the socket over. */
  public AlccInputStream(Socket socket, int silenceMs) throws IOException {
    this.socket = socket;
    this.silenceMs = silenceMs;
    socket.setTcpNoDelay(true);
    socket.setSoTimeout(silenceMs);
    this.in = new Wire.Buffered(socket.getInputStream(), BUFFER_BYTES);
    this.out = socket.getOutputStream();
    this.guard = new WriteGuard(socket, silenceMs);
    out.write(Wire.MAGIC);
    out.flush();
  }

  /** Returns the bytes of data that were handed on so far. */
  public long receivedBytes() {
    return receivedBytes;
  }

  @Override
  public int read() throws IOException {
    byte[] one = new byte[1];
    return read(one, 0, 1) < 0 ? -1 : one[0] & 0xFF;
  }

  @Override
  public int read(byte[] to, int offset, int length) throws IOException {
    if (offset < 0 || length < 0 || length > to.length - offset) throw new IndexOutOfBoundsException();
    if (failure != null) throw failure;
    if (length == 0) return 0;
    try {
      while (payloadLeft == 0) {
        if (ended) return -1;
        if (checked == 0) more();
        else enterFrame();
      }
    } catch (IOException error) {
      failure = error;
      AlccOutputStream.reset(socket);
      guard.close();
      throw error;
    }
    int count = Math.min(length, payloadLeft);
    System.arraycopy(in.bytes, in.begin, to, offset, count);
    advance(count);
    payloadLeft -= count;
    receivedBytes += count;
    return count;
  }

  /** Closes the connection; before the end was read, the sender learns that it is not over. */
  @Override
  public void close() throws IOException {
    if (closed) return;
    closed = true;
    guard.close();
    if (ended) socket.close();
    else AlccOutputStream.reset(socket);
  }

  private void advance(int bytes) {
    in.begin += bytes;
    checked -= bytes;
  }

  private void enterFrame() throws IOException {
    boolean end = in.bytes[in.begin] == Wire.END;
    int length = Wire.getShort(in.bytes, in.begin + 5);
    advance(Wire.HEADER_BYTES);
    payloadLeft = length;
    if (end) {
      ended = true;
      answer(Wire.FINISHED, number);
      guard.close();
    }
  }

  /** Reads until another frame is complete, and acknowledges what is. */
  private void more() throws IOException {
    boolean data = false;
    while (checked == 0) {
      try {
        if (!in.fill()) throw Wire.cut(where("the sender closed the connection without saying that it was all"));
      } catch (SocketTimeoutException nothing) {
        throw new SocketTimeoutException(where("nothing came for " + silenceMs / 1000.0 + " s"));
      }
      if (!greeted) greeted = in.takeMagic("the sender");
      if (greeted) data = check();
    }
    if (data) answer(Wire.ACK, number - 1);
  }

  /** Looks at the frames that are complete; returns whether any has data. */
  private boolean check() throws IOException {
    boolean data = false;
    while (in.size() - checked >= Wire.HEADER_BYTES) {
      int at = in.begin + checked;
      byte kind = in.bytes[at];
      int length = Wire.getShort(in.bytes, at + 5);
      if (kind != Wire.DATA && kind != Wire.END) {
        throw new Wire.ProtocolException(where("a frame has the unknown kind " + (kind & 0xFF)));
      }
      if (Wire.getInt(in.bytes, at + 1) != number) {
        throw new Wire.ProtocolException(
            where("a frame has number " + Integer.toUnsignedLong(Wire.getInt(in.bytes, at + 1))));
      }
      if (kind == Wire.END ? length != 0 : length == 0 || length > Wire.MOST_FRAME_BYTES) {
        throw new Wire.ProtocolException(where("a frame has " + length + " bytes"));
      }
      if (in.size() - checked < Wire.HEADER_BYTES + length) break;
      checked += Wire.HEADER_BYTES + length;
      if (kind == Wire.END) break;
      data = true;
      number++;
    }
    return data;
  }

  private void answer(byte kind, int acknowledged) throws IOException {
    guard.begin();
    try {
      out.write(Wire.answer(kind, acknowledged, Wire.nowUs()));
      out.flush();
    } catch (IOException error) {
      throw guard.tooLong() ? new IOException(where("the sender took no ACK for " + silenceMs / 1000.0 + " s")) : error;
    } finally {
      guard.end();
    }
  }

  private String where(String what) {
    return what + " (after frame " + Integer.toUnsignedLong(number) + ", byte " + receivedBytes + ")";
  }
}
