// SPDX-License-Identifier: Apache-2.0
package reinet.alcc;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;

/** The counts of {@link Mdi}'s walk, read from a file that agents/learn/mdi.py made. */
public final class Matrix {
  private static final int MOST_ROWS = 100_000; // of a file that somebody else may have made

  final long epochUs;
  final double[] delayRatios;
  final double[] windowRatios;
  final double[] levels;
  final double[] windowSteps;
  private final Map<Integer, int[]> rows = new HashMap<>();

  private Matrix(Map<String, double[]> header, String name) throws IOException {
    epochUs = (long) (1000 * need(header, "epoch_ms", name)[0]);
    delayRatios = need(header, "delay_ratios", name);
    windowRatios = need(header, "window_ratios", name);
    levels = need(header, "levels", name);
    windowSteps = need(header, "window_steps", name);
    if (windowSteps.length != windowRatios.length + 1 || epochUs <= 0) {
      throw new IOException(name + ": window_steps has not one step for each bin of window_ratios, or epoch_ms is 0");
    }
  }

  /** Returns the matrix that comes with these classes. */
  public static Matrix own() throws IOException {
    try (InputStream in = Matrix.class.getResourceAsStream("/verus.tsv")) {
      if (in == null) throw new IOException("verus.tsv is not on the class path: add the folder alcc/java to -cp");
      return read(in, "verus.tsv");
    }
  }

  /** Reads a matrix; throws IOException with name and line for one that makes no sense. */
  public static Matrix read(InputStream in, String name) throws IOException {
    BufferedReader lines = new BufferedReader(new InputStreamReader(in, StandardCharsets.UTF_8));
    Map<String, double[]> header = new HashMap<>();
    Matrix matrix = null;
    String line;
    for (int number = 1; (line = lines.readLine()) != null; number++) {
      if (line.isEmpty() || line.startsWith("#")) continue;
      String[] words = line.split("\t");
      try {
        if (!words[0].equals("state")) {
          header.put(words[0], Arrays.stream(words).skip(1).mapToDouble(Double::parseDouble).toArray());
        } else {
          if (matrix == null) matrix = new Matrix(header, name);
          matrix.add(Arrays.asList(words).indexOf(":"), words);
        }
      } catch (IllegalArgumentException error) { // NumberFormatException is one
        throw new IOException(name + ":" + number + ": " + error.getMessage());
      }
    }
    if (matrix == null) throw new IOException(name + ": no state is in it");
    return matrix;
  }

  /** Returns the counts of a state: those of all four, where they were seen often enough, or else of the first two. */
  int[] counts(int level, int delay, int lastDelay, int lastWindow) {
    int[] counts = rows.get(key(level, delay, lastDelay, lastWindow));
    if (counts == null) counts = rows.get(key(level, delay, -1, -1));
    return counts == null ? new int[windowSteps.length] : counts;
  }

  /** Returns how many of the edges lie at or below the value. */
  static int bin(double value, double[] edges) {
    int bin = 0;
    while (bin < edges.length && value >= edges[bin]) bin++;
    return bin;
  }

  private static double[] need(Map<String, double[]> header, String key, String name) throws IOException {
    double[] found = header.get(key);
    if (found == null || found.length == 0) throw new IOException(name + ": " + key + " is missing before the states");
    return found;
  }

  private void add(int colon, String[] words) {
    if (colon != 3 && colon != 5 || words.length != colon + 1 + windowSteps.length || rows.size() >= MOST_ROWS) {
      throw new IllegalArgumentException("a state is two or four bins, a colon and " + windowSteps.length + " counts");
    }
    int[] counts = new int[windowSteps.length];
    for (int i = 0; i < counts.length; i++) {
      counts[i] = Integer.parseInt(words[colon + 1 + i]);
      if (counts[i] < 0 || counts[i] > 1_000_000) throw new IllegalArgumentException("a count of " + counts[i]);
    }
    int last = colon == 5 ? Integer.parseInt(words[3]) : -1;
    rows.put(key(Integer.parseInt(words[1]), Integer.parseInt(words[2]), last, colon == 5 ? Integer.parseInt(words[4]) : -1), counts);
  }

  private static int key(int level, int delay, int lastDelay, int lastWindow) {
    return ((level * 64 + delay) * 64 + lastDelay + 1) * 64 + lastWindow + 1;
  }
}
