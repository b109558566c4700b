// SPDX-License-Identifier: Apache-2.0
package reinet.alcc;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Arrays;
import java.util.Random;

/** Checks of the client that need its insides, in one JVM; each says "NAME ok", or throws. */
public final class Checks {
  private interface Check {
    void run() throws Exception;
  }

  /** A socket whose peer has said all it ever says. */
  private static class Recorded extends Socket {
    private final InputStream in;
    final ByteArrayOutputStream out = new ByteArrayOutputStream();

    Recorded(byte[] said, int most) {
      in =
          new ByteArrayInputStream(said) {
            @Override
            public synchronized int read(byte[] to, int offset, int length) {
              return super.read(to, offset, Math.min(length, most));
            }
          };
    }

    @Override
    public InputStream getInputStream() {
      return in;
    }

    @Override
    public OutputStream getOutputStream() {
      return out;
    }

    @Override
    public void setTcpNoDelay(boolean on) {}

    @Override
    public synchronized void setSoTimeout(int ms) {}
  }

  private static void expect(boolean holds, String what) {
    if (!holds) throw new AssertionError(what);
  }

  /** What is sent: one block again and again, of a length that no frame's or buffer's divides. */
  private static final byte[] BLOCK = new byte[65_521];

  private static byte[] pattern(long position, int count) {
    byte[] bytes = new byte[count];
    for (int done = 0; done < count; ) {
      int from = (int) ((position + done) % BLOCK.length);
      int part = Math.min(count - done, BLOCK.length - from);
      System.arraycopy(BLOCK, from, bytes, done, part);
      done += part;
    }
    return bytes;
  }

  private static byte[] stream(int... lengths) {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    out.write(Wire.MAGIC, 0, 4);
    byte[] header = new byte[Wire.HEADER_BYTES];
    long position = 0;
    int number = 0;
    for (int length : lengths) {
      Wire.header(header, 0, Wire.DATA, number++, length);
      out.write(header, 0, header.length);
      out.write(pattern(position, length), 0, length);
      position += length;
    }
    Wire.header(header, 0, Wire.END, number, 0);
    out.write(header, 0, header.length);
    return out.toByteArray();
  }

  private static void numbers() {
    byte[] header = new byte[Wire.HEADER_BYTES + 1];
    expect(Wire.header(header, 1, Wire.DATA, 0xFEDCBA98, 0x8421) == 8, "a header's length");
    expect(header[1] == 'D' && Wire.getInt(header, 2) == 0xFEDCBA98 && Wire.getShort(header, 6) == 0x8421, "a header");
    byte[] answer = Wire.answer(Wire.ACK, -2, 0x8000_0001_8000_0002L);
    expect(Wire.getInt(answer, 1) == -2 && Wire.getLong(answer, 5) == 0x8000_0001_8000_0002L, "an answer");
  }

  private static void flight() throws IOException {
    Flight flight = new Flight();
    long[] told = new long[3];
    Law law =
        new Law() {
          @Override
          public void onSent(int inFlightFrames) {}

          @Override
          public void onAck(long nowUs, int frames, long sumUs, long lowestUs) {
            told[0] = lowestUs;
            told[1] = sumUs;
            told[2] = frames;
          }

          @Override
          public int windowFrames() {
            return 1;
          }
        };
    int all = 3 * Flight.MOST_FRAMES;
    for (int sent = 0, acked = 0; acked < all; ) {
      while (sent < all && flight.frames() < Flight.MOST_FRAMES) flight.add(10L * sent++, 7);
      acked += 5;
      int last = Math.min(acked, all) - 1;
      flight.acknowledge(last, 10L * last + 3000, 0, law);
      expect(told[0] == 3000 && told[1] == (told[2] - 1) * told[2] * 5 + 3000 * told[2], "the round trips");
    }
    expect(flight.frames() == 0 && flight.ackedBytes == 7L * all && flight.rttLeastMs() == 3.0, "the counts");
    for (int wrong : new int[] {all, all - 1, -1, Integer.MIN_VALUE}) {
      try {
        flight.acknowledge(wrong, 0, 0, law);
        throw new AssertionError("took an ACK of frame " + wrong);
      } catch (Wire.ProtocolException expected) {
        expect(expected.getMessage().contains("acknowledges"), "the message");
      }
    }
  }

  /** However the network cuts the bytes up, the same data comes out, and each frame is acknowledged. */
  private static void splits() throws IOException {
    int[] lengths = {1, Wire.FRAME_BYTES, 3, Wire.MOST_FRAME_BYTES, 2};
    byte[] said = stream(lengths);
    for (int most : new int[] {1, 2, 6, 7, 8, 1000, 1 << 20}) {
      Recorded socket = new Recorded(said, most);
      AlccInputStream in = new AlccInputStream(socket, 1000);
      int total = Arrays.stream(lengths).sum();
      byte[] whole = pattern(0, total);
      for (int i = 0; i < total; i++) expect(in.read() == (whole[i] & 0xFF), "byte " + i + " of reads of " + most);
      expect(in.read() == -1 && in.read() == -1, "the end");
      byte[] answers = socket.out.toByteArray();
      int last = answers.length - Wire.ANSWER_BYTES;
      expect(answers[last] == Wire.FINISHED && Wire.getInt(answers, last + 1) == lengths.length, "the last word");
      expect(Wire.getInt(answers, last - Wire.ANSWER_BYTES + 1) == lengths.length - 1, "the last ACK");
    }
  }

  /** Whatever a sender says, reading ends, in data that was sent or in an IOException. */
  private static void garbage() throws IOException {
    Random random = new Random(1);
    byte[] good = stream(5, 1400, 3, 200, 0xFFF);
    int refused = 0;
    for (int round = 0; round < 2000; round++) {
      byte[] said = Arrays.copyOf(good, random.nextInt(10) == 0 ? random.nextInt(good.length) : good.length);
      for (int change = random.nextInt(4); change > 0 && said.length > 0; change--) {
        int where = random.nextBoolean() ? random.nextInt(Math.min(12, said.length)) : random.nextInt(said.length);
        said[where] = (byte) random.nextInt();
      }
      AlccInputStream in = new AlccInputStream(new Recorded(said, 1 + random.nextInt(500)), 1000);
      byte[] block = new byte[700];
      try {
        long read = 0;
        for (int count; (count = in.read(block)) >= 0; read += count) {
          expect(count > 0 && read < good.length, "bytes from nowhere");
        }
        expect(read == in.receivedBytes(), "the count");
      } catch (IOException expected) {
        refused++;
        expect(expected.getMessage() != null, "a failure without a word");
      } finally {
        in.close();
      }
    }
    expect(refused > 800, "only " + refused + " were refused");
  }

  /** A sender that takes no ACK holds its receiver no longer than it was told to wait. */
  private static void untaken() throws IOException {
    Object lock = new Object();
    boolean[] closed = new boolean[1];
    Socket socket =
        new Recorded(stream(5, 5), 30) {
          private int writes;

          @Override
          public OutputStream getOutputStream() {
            return new OutputStream() {
              @Override
              public void write(int value) throws IOException {
                if (++writes <= Wire.MAGIC.length) return;
                synchronized (lock) {
                  try {
                    while (!closed[0]) lock.wait();
                  } catch (InterruptedException interrupted) {
                    throw new IllegalStateException(interrupted);
                  }
                }
                throw new IOException("closed");
              }
            };
          }

          @Override
          public synchronized void close() {
            synchronized (lock) {
              closed[0] = true;
              lock.notifyAll();
            }
          }
        };
    try (AlccInputStream in = new AlccInputStream(socket, 200)) {
      in.read();
      throw new AssertionError("it did not wait");
    } catch (IOException expected) {
      expect(expected.getMessage().contains("the sender took no ACK for 0.2 s"), expected.getMessage());
    }
  }

  /**
   * Over a link of so many frames a second and 20 ms, in a buffer without an end, the walk keeps the link busy and the
   * delay where Verus keeps it: below 8 times its least, and with a queue.
   */
  private static void walk() throws IOException {
    Matrix matrix = Matrix.own();
    for (int perSecond : new int[] {500, 1000, 4000}) {
      Mdi mdi = new Mdi(matrix, new Random(perSecond));
      double sumMs = 0;
      int busy = 0;
      int epochs = 5000;
      for (int epoch = 0; epoch < epochs; epoch++) {
        int out = mdi.windowFrames();
        mdi.onSent(out);
        double rttUs = Math.max(20_000, out * 1e6 / perSecond);
        for (int i = 0; i < 4; i++) mdi.onAck(epoch * 20_000L + i * 5000L, 1, (long) rttUs, (long) rttUs);
        if (epoch > 200) {
          sumMs += rttUs / 1000;
          if (out * 50 >= perSecond) busy++;
        }
      }
      double meanMs = sumMs / (epochs - 201);
      String what = " at " + perSecond + " frames/s";
      expect(meanMs > 40 && meanMs < 160, "a mean of " + meanMs + " ms" + what);
      expect(busy > 0.9 * (epochs - 201), "busy in " + busy + " epochs" + what);
    }
  }

  /** A neighbour is not limited, however late its threads get to run. */
  private static void neighbour() throws IOException {
    Mdi mdi = new Mdi(Matrix.own(), new Random(1));
    for (int i = 0; i < 100; i++) {
      mdi.onSent(3);
      mdi.onAck(i * 20_000L, 1, i == 50 ? 900 : 50_000, i == 50 ? 900 : 50_000);
      expect(i < 50 == mdi.windowFrames() < 100, "a window of " + mdi.windowFrames() + " after " + i + " epochs");
    }
  }

  /** What nobody used does not grow, and a delay that stays far above its least leads down to the least window. */
  private static void bounds() throws IOException {
    Mdi idle = new Mdi(Matrix.own(), new Random(1));
    Mdi late = new Mdi(Matrix.own(), new Random(1));
    for (int i = 0; i < 3000; i++) {
      idle.onSent(4);
      idle.onAck(i * 20_000L, 1, 20_000, 20_000);
      late.onSent(100);
      long delayUs = i == 0 ? 20_000 : 2_000_000;
      late.onAck(i * 20_000L, 1, delayUs, delayUs);
      expect(idle.windowFrames() <= Mdi.FIRST_FRAMES, "a window of " + idle.windowFrames() + " for 4 frames");
      expect(late.windowFrames() >= Mdi.LEAST_FRAMES, "a window of " + late.windowFrames());
    }
    expect(late.windowFrames() == Mdi.LEAST_FRAMES, "still " + late.windowFrames() + " frames at 100 times the delay");
  }

  private static Socket[] pair() throws IOException {
    try (ServerSocket listener = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
      Socket one = new Socket(listener.getInetAddress(), listener.getLocalPort());
      return new Socket[] {one, listener.accept()};
    }
  }

  /** A window that is another after each ACK. */
  private static final class Restless implements Law {
    private final Random random = new Random(3);
    private int frames = 1;

    @Override
    public void onSent(int inFlightFrames) {}

    @Override
    public void onAck(long nowUs, int count, long sumUs, long lowestUs) {
      frames = 1 + random.nextInt(60);
    }

    @Override
    public int windowFrames() {
      return frames;
    }
  }

  private static void transfer(long size, Law law, int pauseMs) throws Exception {
    Socket[] ends = pair();
    Throwable[] failed = new Throwable[1];
    Thread writer =
        new Thread(
            () -> {
              Random random = new Random(size);
              try (AlccOutputStream out = new AlccOutputStream(ends[0], law, 20_000)) {
                for (long sent = 0; sent < size; ) {
                  int count = (int) Math.min(size - sent, 1 + random.nextInt(1 << (1 + random.nextInt(16))));
                  out.write(pattern(sent, count));
                  sent += count;
                }
              } catch (Throwable error) {
                failed[0] = error;
              }
            });
    writer.start();
    long read = 0;
    try (AlccInputStream in = new AlccInputStream(ends[1], 20_000)) {
      byte[] block = new byte[50_000];
      for (int count; (count = in.read(block)) >= 0; read += count) {
        expect(Arrays.equals(Arrays.copyOf(block, count), pattern(read, count)), "bytes from " + read + " of " + size);
        if (pauseMs > 0 && read < size / 2 && read + count >= size / 2) Thread.sleep(pauseMs);
      }
    }
    writer.join();
    if (failed[0] != null) throw new IllegalStateException(failed[0]);
    expect(read == size, read + " bytes of " + size);
  }

  private static void sizes() throws Exception {
    long[] sizes = {0, 1, 2, Wire.FRAME_BYTES - 1, Wire.FRAME_BYTES, Wire.FRAME_BYTES + 1, 65_536, 1_000_003};
    for (long size : sizes) {
      transfer(size, new Law.Fixed(1 + (int) (size % 5)), 0);
      transfer(size, Law.none(), 0);
      transfer(size, new Restless(), 0);
    }
  }

  /** More than the memory that the JVM was given. */
  private static void large() throws Exception {
    transfer(30_000_000, new Law.Fixed(200), 0);
  }

  private static void pause() throws Exception {
    transfer(14_000_000, Law.none(), 1000);
  }

  /** Prints what the walk multiplies its window with in one state; the test has the state in words. */
  private static void draw(int times) throws IOException {
    Matrix matrix = Matrix.own();
    for (int seed = 0, drawn = 0; drawn < times; seed++) {
      Mdi mdi = new Mdi(matrix, new Random(seed * 7919L));
      double[] windows = new double[5];
      long[] delaysUs = {20_000, 20_000, 57_851, 63_636, 70_000}; // the first begins an epoch
      for (int i = 0; i < 5; i++) {
        windows[i] = mdi.window();
        mdi.onSent(1 << 20);
        mdi.onAck(i * 20_000L, 1, delaysUs[i], delaysUs[i]);
      }
      double last = windows[4] / windows[3];
      if (last < 0.96 || last >= 1.04) continue; // the window is to have stayed in the epoch before
      System.out.println(mdi.window() / windows[4]);
      drawn++;
    }
  }

  public static void main(String[] names) throws Exception {
    if (names.length == 2) {
      draw(Integer.parseInt(names[1]));
      System.exit(0);
    }
    Object[][] checks = {
      {"numbers", (Check) Checks::numbers}, {"flight", (Check) Checks::flight}, {"splits", (Check) Checks::splits},
      {"garbage", (Check) Checks::garbage}, {"untaken", (Check) Checks::untaken}, {"walk", (Check) Checks::walk}, {"bounds", (Check) Checks::bounds},
      {"neighbour", (Check) Checks::neighbour},
      {"sizes", (Check) Checks::sizes}, {"large", (Check) Checks::large},
      {"pause", (Check) Checks::pause},
    };
    new Random(7).nextBytes(BLOCK);
    for (Object[] check : checks) {
      ((Check) check[1]).run();
      System.out.println(check[0] + " ok");
    }
    System.exit(0);
  }
}
