// SPDX-License-Identifier: Apache-2.0
package reinet.alcc;

import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.Socket;
import java.security.GeneralSecurityException;
import java.util.Locale;
import java.util.Random;

/** A transfer from the command line; docs/alcc.md says how. Exits 0, 1 (failed) or 2 (wrong usage). */
public final class Main {
  private static final int BLOCK_BYTES = 1 << 16;
  private static final String USAGE =
      "usage: send|receive --connect HOST:PORT | --listen [ADDRESS:]PORT [--file FILE] [--seconds N]\n"
          + "       [--window mdi|none|fixed:N] [--tls STORE.p12] [--stall-seconds N]\n"
          + "without --file, send sends noise for --seconds, and receive drops what comes";

  private Main() {}

  public static void main(String[] words) {
    try {
      Options options = Options.parse(words);
      if (options.sends) send(options);
      else receive(options);
    } catch (Options.UsageException error) {
      System.err.println("error: " + error.getMessage() + "\n" + USAGE);
      System.exit(2);
    } catch (IOException | GeneralSecurityException error) {
      String said = error.getMessage();
      System.err.println("error: " + error.getClass().getSimpleName() + (said == null ? "" : ": " + said));
      System.exit(1);
    }
    System.exit(0);
  }

  private static void send(Options options) throws Options.UsageException, IOException, GeneralSecurityException {
    Law law = options.law();
    InputStream file = options.file == null ? null : new FileInputStream(options.file);
    try (Socket socket = options.open()) {
      AlccOutputStream out = new AlccOutputStream(socket, law, options.stallMs);
      long beganUs = Wire.nowUs();
      try {
        if (file == null) noise(out, beganUs + (long) (options.seconds * 1e6));
        else copy(file, out);
        out.close();
      } catch (IOException error) {
        out.abort();
        throw error;
      }
      AlccOutputStream.Counts counts = out.counts();
      double seconds = (Wire.nowUs() - beganUs) / 1e6;
      System.out.println(
          String.format(
              Locale.ROOT,
              "{\"event\": \"sent\", \"window\": \"%s\", \"seconds\": %.3f, \"sent_bytes\": %d, \"acked_bytes\": %d,"
                  + " \"throughput_mbps\": %.3f, \"rtt_mean_ms\": %.3f, \"rtt_p95_ms\": %d, \"rtt_least_ms\": %.3f,"
                  + " \"queue_mean_ms\": %.3f}",
              options.window, seconds, counts.sentBytes, counts.ackedBytes, counts.ackedBytes * 8e-6 / seconds,
              counts.rttMeanMs, counts.rttP95Ms, counts.rttLeastMs, counts.queueMeanMs));
    } finally {
      if (file != null) file.close();
    }
  }

  private static void receive(Options options) throws Options.UsageException, IOException, GeneralSecurityException {
    long beganUs;
    long received;
    try (OutputStream file = options.file == null ? null : new FileOutputStream(options.file);
        Socket socket = options.open();
        AlccInputStream in = new AlccInputStream(socket, options.stallMs)) {
      beganUs = Wire.nowUs();
      copy(in, file);
      received = in.receivedBytes();
    }
    double seconds = (Wire.nowUs() - beganUs) / 1e6;
    System.out.println(
        String.format(
            Locale.ROOT,
            "{\"event\": \"received\", \"seconds\": %.3f, \"received_bytes\": %d, \"throughput_mbps\": %.3f}",
            seconds, received, received * 8e-6 / seconds));
  }

  private static void copy(InputStream from, OutputStream to) throws IOException {
    byte[] block = new byte[BLOCK_BYTES];
    int count;
    while ((count = from.read(block)) >= 0) {
      if (to != null) to.write(block, 0, count);
    }
  }

  static void noise(OutputStream to, long untilUs) throws IOException {
    byte[] block = new byte[BLOCK_BYTES];
    new Random().nextBytes(block);
    while (Wire.nowUs() < untilUs) to.write(block);
  }
}
