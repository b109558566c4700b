// SPDX-License-Identifier: Apache-2.0
package reinet.alcc;

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
 *   LinkEnd send WINDOW [CC]   outside the shells: listens, sends noise until standard input ends
 *   LinkEnd receive PORT       inside: connects to PORT at $MAHIMAHI_BASE, twice, drops what comes
 * </pre>
 *
 * <p>Java cannot choose the kernel's congestion control, and the namespace's default may be restricted: the routes to the
 * receiver say which. They are there when it first connects, and decide from its second connection on.
 */
final class LinkEnd {
  private static final int WAIT_MS = 60_000; // as long as a link waits for its parts
  private static final int BLOCK_BYTES = 1 << 14; // little enough to see the end of input soon on a slow link

  private LinkEnd() {}

  public static void main(String[] words) throws Exception {
    if (words[0].equals("send")) send(words[1], words.length > 2 ? words[2] : null);
    else receive(Integer.parseInt(words[1]));
    System.exit(0);
  }

  private static void send(String window, String cc) throws Exception {
    Law law = Options.parse(new String[] {"send", "--listen", "0", "--window", window}).law();
    byte[] block = new byte[BLOCK_BYTES];
    new Random().nextBytes(block);
    try (ServerSocket listener = new ServerSocket()) {
      listener.setSoTimeout(WAIT_MS);
      listener.bind(new InetSocketAddress("0.0.0.0", 0), 1);
      System.out.println("{\"event\": \"listening\", \"port\": " + listener.getLocalPort() + "}");
      listener.accept().close();
      if (cc != null) route(cc);
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

  private static void route(String cc) throws IOException, InterruptedException {
    String each = "ip route show | while read -r route; do ip route change $route congctl \"$0\" || exit 1; done";
    int status = new ProcessBuilder("sh", "-c", each, cc).inheritIO().start().waitFor();
    if (status != 0) throw new IOException("the routes did not take " + cc + " as their congestion control");
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
    String base = System.getenv("MAHIMAHI_BASE");
    try (Socket first = new Socket(base, port)) {
      first.getInputStream().read(); // until it is closed
    }
    try (Socket socket = new Socket(base, port);
        AlccInputStream in = new AlccInputStream(socket, WAIT_MS)) {
      byte[] block = new byte[1 << 16];
      while (in.read(block) >= 0) continue;
    } catch (IOException cut) {
      // as every flow here, which goes on until its link ends
    }
  }

  private static long cpuUs() {
    return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime()
        / 1000;
  }
}
