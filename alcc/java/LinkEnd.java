// SPDX-License-Identifier: Apache-2.0
package reinet.alcc;

import java.io.EOFException;
import java.io.IOException;
import java.io.OutputStream;
import java.lang.management.ManagementFactory;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Random;

/**
 * The client as both ends of an emulated link, in the place of reinet-sender and reinet-receiver: it is told and says
 * what these are and do (envs/mahimahi/helpers/sender.c). Not for Android, which has no management beans.
 *
 * <pre>
 *   LinkEnd send WINDOW     outside the shells: listens, sends noise until standard input ends
 *   LinkEnd receive PORT    inside: connects to PORT at $MAHIMAHI_BASE, drops what comes
 * </pre>
 */
final class LinkEnd {
  private static final int WAIT_MS = 60_000; // as long as a link waits for its parts
  private static final int BLOCK_BYTES = 1 << 14; // little enough to see the end of input soon on a slow link

  private LinkEnd() {}

  public static void main(String[] words) throws Exception {
    if (words[0].equals("send")) send(words[1]);
    else receive(Integer.parseInt(words[1]));
    System.exit(0);
  }

  private static void send(String window) throws Exception {
    Law law = Options.parse(new String[] {"send", "--listen", "0", "--window", window}).law();
    byte[] block = new byte[BLOCK_BYTES];
    new Random().nextBytes(block);
    try (ServerSocket listener = new ServerSocket()) {
      listener.setSoTimeout(WAIT_MS);
      listener.bind(new InetSocketAddress("0.0.0.0", 0), 1);
      System.out.println("{\"event\": \"listening\", \"port\": " + listener.getLocalPort() + "}");
      try (Socket socket = listener.accept();
          AlccOutputStream out = new AlccOutputStream(socket, law, WAIT_MS)) {
        System.out.println(
            "{\"event\": \"flow\", \"cookie\": 0, \"cc\": \"java " + window + "\", \"port\": " + socket.getPort() + "}");
        long beforeUs = cpuUs();
        // System.nanoTime() is CLOCK_MONOTONIC on Linux
        System.out.println("{\"event\": \"sending\", \"time_ns\": " + System.nanoTime() + "}");
        Thread writer = new Thread(() -> write(out, block), "writer");
        writer.setDaemon(true);
        writer.start();
        while (System.in.read() >= 0) continue; // until whoever started this closes it
        long endedNs = System.nanoTime();
        AlccOutputStream.Counts counts = out.counts();
        System.out.println(
            "{\"event\": \"closed\", \"cookie\": 0, \"sent_bytes\": " + counts.sentBytes + ", \"acked_bytes\": "
                + counts.ackedBytes + ", \"retrans_pkts\": 0, \"finished\": false, \"rtt_mean_ms\": " + counts.rttMeanMs
                + "}");
        System.out.println("{\"event\": \"end\", \"time_ns\": " + endedNs + ", \"cpu_us\": " + (cpuUs() - beforeUs) + "}");
        System.exit(0); // an orderly close would wait for the queue that is being measured
      }
    }
  }

  private static void write(OutputStream out, byte[] block) {
    try {
      while (true) out.write(block);
    } catch (IOException error) {
      System.out.println("{\"event\": \"error\", \"message\": \"" + error.getMessage().replace('"', '\'') + "\"}");
      System.exit(1);
    }
  }

  private static void receive(int port) throws IOException {
    try (Socket socket = new Socket(System.getenv("MAHIMAHI_BASE"), port);
        AlccInputStream in = new AlccInputStream(socket, WAIT_MS)) {
      byte[] block = new byte[1 << 16];
      while (in.read(block) >= 0) continue;
    } catch (EOFException cut) {
      // as every flow here that goes on until its link ends
    }
  }

  private static long cpuUs() {
    return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime()
        / 1000;
  }
}
