// SPDX-License-Identifier: Apache-2.0
package reinet.alcc;

import java.io.IOException;
import java.io.OutputStream;
import java.net.Socket;
import java.net.SocketTimeoutException;

/**
 * Sends over a connected Socket or SSLSocket and keeps no more in flight than a {@link Law} allows; the other end reads
 * from an {@link AlccInputStream}.
 *
 * <p>A write returns when all its bytes are the kernel's; nothing is kept here. Each write makes frames of its own, so
 * small ones belong behind a BufferedOutputStream. One further thread reads the ACKs. {@link #close} waits until the
 * other end's reader has taken all, so that its return says that all arrived. While frames are out and none is
 * acknowledged for the time given, the connection is reset and all calls throw.
 */
public final class AlccOutputStream extends OutputStream {
  private static final int BATCH_FRAMES = 8; // what goes in one call and, over TLS, in one record

  private final Socket socket;
  private final OutputStream out;
  private final Law law;
  private final long stallUs;
  private final Thread acks;
  private final Object writing = new Object();
  private final byte[] batch = new byte[BATCH_FRAMES * (Wire.FRAME_BYTES + Wire.HEADER_BYTES)];

  private final Object lock = new Object(); // what follows
  private final Flight flight = new Flight();
  private long heardUs; // the last ACK, or the first frame after none was out
  private boolean ended; // 'E' went
  private boolean finished; // 'F' came
  private boolean closed;
  private IOException failure;

  /** Takes the socket over; {@code stallMs} is the longest wait for an ACK. */
  public AlccOutputStream(Socket socket, Law law, int stallMs) throws IOException {
    this.socket = socket;
    this.law = law;
    this.stallUs = stallMs * 1000L;
    socket.setTcpNoDelay(true);
    socket.setSoTimeout(Math.max(1, stallMs / 4)); // how often the reader of ACKs looks at the clock
    this.out = socket.getOutputStream();
    out.write(Wire.MAGIC);
    out.flush();
    heardUs = Wire.nowUs();
    acks = new Thread(this::readAcks, "alcc-acks");
    acks.setDaemon(true);
    acks.start();
  }

  @Override
  public void write(int value) throws IOException {
    write(new byte[] {(byte) value}, 0, 1);
  }

  @Override
  public void write(byte[] from, int offset, int length) throws IOException {
    if (offset < 0 || length < 0 || length > from.length - offset) throw new IndexOutOfBoundsException();
    synchronized (writing) {
      int at = offset;
      while (at < offset + length) {
        int left = offset + length - at;
        int number;
        int taken;
        synchronized (lock) {
          int frames = Math.min(awaitRoom(), (left + Wire.FRAME_BYTES - 1) / Wire.FRAME_BYTES);
          taken = Math.min(left, frames * Wire.FRAME_BYTES);
          number = flight.nextNumber();
          long nowUs = Wire.nowUs();
          if (flight.frames() == 0) heardUs = nowUs;
          for (int done = 0; done < taken; done += Wire.FRAME_BYTES) {
            flight.add(nowUs, Math.min(Wire.FRAME_BYTES, taken - done));
          }
          law.onSent(flight.frames());
        }
        send(from, at, taken, number);
        at += taken;
      }
    }
  }

  /** Does nothing: nothing is kept here. */
  @Override
  public void flush() {}

  /** Ends the data and waits until the other end's reader has all of it; then closes the socket. */
  @Override
  public void close() throws IOException {
    synchronized (writing) {
      synchronized (lock) {
        if (closed) return;
        closed = true;
        if (failure != null) {
          abort();
          throw failure;
        }
        ended = true;
        heardUs = Wire.nowUs();
      }
      byte[] end = new byte[Wire.HEADER_BYTES];
      Wire.header(end, 0, Wire.END, flight.nextNumber(), 0);
      hand(end, end.length);
    }
    synchronized (lock) {
      while (!finished) {
        await();
      }
    }
    socket.close();
  }

  /** Ends the connection at once; the other end learns that the data is not whole. */
  public void abort() {
    synchronized (lock) {
      if (failure == null) failure = new IOException("the sender gave up");
      closed = true;
      lock.notifyAll();
    }
    reset(socket);
  }

  /** Returns what has happened so far. */
  public Counts counts() {
    synchronized (lock) {
      return new Counts(flight, law.windowFrames());
    }
  }

  /** A moment of a sender. Delays are in ms and 0 before the first ACK. */
  public static final class Counts {
    public final long sentBytes;
    public final long ackedBytes;
    public final int windowFrames;
    public final double rttMeanMs;
    public final long rttP95Ms;
    public final double rttLeastMs;
    public final double queueMeanMs;

    Counts(Flight flight, int windowFrames) {
      this.sentBytes = flight.sentBytes;
      this.ackedBytes = flight.ackedBytes;
      this.windowFrames = windowFrames;
      this.rttMeanMs = flight.rttMeanMs();
      this.rttP95Ms = flight.rttP95Ms();
      this.rttLeastMs = flight.rttLeastMs();
      this.queueMeanMs = flight.queueMeanMs();
    }
  }

  /** Resets a connection, which also ends calls on it that wait: an orderly end of TLS would wait for them. */
  static void reset(Socket socket) {
    try {
      socket.setSoLinger(true, 0);
      socket.close();
    } catch (IOException gone) {
      // there is nothing left to reset
    }
  }

  private int awaitRoom() throws IOException {
    while (true) {
      if (failure != null) throw failure;
      if (closed) throw new IOException("the stream is closed");
      int out = flight.frames();
      int room = Math.min(law.windowFrames(), Flight.MOST_FRAMES) - out;
      if (room > 0) return Math.min(room, BATCH_FRAMES);
      await();
    }
  }

  /** Waits for an ACK or a failure; the thread that reads ACKs looks at the clock. */
  private void await() throws IOException {
    if (failure != null) throw failure;
    try {
      lock.wait();
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      fail(new IOException("the thread was interrupted while it waited for room"));
      throw failure;
    }
    if (failure != null) throw failure;
  }

  private void send(byte[] from, int offset, int length, int firstNumber) throws IOException {
    int size = 0;
    for (int done = 0, number = firstNumber; done < length; done += Wire.FRAME_BYTES, number++) {
      int payload = Math.min(Wire.FRAME_BYTES, length - done);
      size = Wire.header(batch, size, Wire.DATA, number, payload);
      System.arraycopy(from, offset + done, batch, size, payload);
      size += payload;
    }
    hand(batch, size);
  }

  private void hand(byte[] bytes, int size) throws IOException {
    try {
      out.write(bytes, 0, size);
      out.flush();
    } catch (IOException error) {
      synchronized (lock) {
        fail(error); // what the reader of ACKs found first says more
        throw failure;
      }
    }
  }

  private void fail(IOException error) {
    if (failure == null) failure = error;
    lock.notifyAll();
  }

  private void readAcks() {
    IOException error;
    try {
      Wire.Buffered in = new Wire.Buffered(socket.getInputStream(), 4096);
      boolean greeted = false;
      while (true) {
        if (!greeted) greeted = in.takeMagic("the receiver");
        while (greeted && in.size() >= Wire.ANSWER_BYTES) {
          if (take(in.bytes, in.begin)) return;
          in.begin += Wire.ANSWER_BYTES;
        }
        if (!fill(in)) {
          throw Wire.cut("the receiver closed the connection before it had taken all");
        }
      }
    } catch (IOException caught) {
      error = caught;
    }
    boolean open;
    synchronized (lock) {
      open = !closed || ended;
      fail(error);
    }
    if (open) reset(socket);
  }

  private boolean fill(Wire.Buffered in) throws IOException {
    while (true) {
      try {
        return in.fill();
      } catch (SocketTimeoutException nothing) {
        synchronized (lock) {
          boolean waits = flight.frames() > 0 || ended;
          if (waits && Wire.nowUs() - heardUs > stallUs) {
            throw new SocketTimeoutException(
                "nothing was acknowledged for " + stallUs / 1_000_000.0 + " s, with " + flight.frames()
                    + " frames out: the receiver or the path has stalled");
          }
        }
      }
    }
  }

  /** Takes an answer; returns whether it was the last. */
  private boolean take(byte[] bytes, int at) throws IOException {
    int number = Wire.getInt(bytes, at + 1);
    long nowUs = Wire.nowUs();
    synchronized (lock) {
      switch (bytes[at]) {
        case Wire.ACK:
          flight.acknowledge(number, nowUs, Wire.getLong(bytes, at + 5), law);
          heardUs = nowUs;
          lock.notifyAll();
          return false;
        case Wire.FINISHED:
          if (!ended || flight.frames() > 0 || number != flight.nextNumber()) {
            throw new Wire.ProtocolException("the receiver says it is finished, before it has acknowledged all");
          }
          finished = true;
          lock.notifyAll();
          return true;
        default:
          throw new Wire.ProtocolException("the receiver sent an answer of unknown kind " + (bytes[at] & 0xFF));
      }
    }
  }
}
