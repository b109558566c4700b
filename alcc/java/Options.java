// SPDX-License-Identifier: Apache-2.0
package reinet.alcc;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.security.GeneralSecurityException;
import java.util.Random;

/** What a command line says, and the connection that it asks for. */
final class Options {
  static final class UsageException extends Exception {
    private static final long serialVersionUID = 1L;

    UsageException(String message) {
      super(message);
    }
  }

  private static final int CONNECT_MS = 20_000;

  boolean sends;
  String address;
  boolean listens;
  String file;
  double seconds = 10;
  String window = "mdi";
  String tls;
  int stallMs = 60_000; // an outage of a cellular link lasts seconds; nobody waits for minutes

  static Options parse(String[] words) throws UsageException {
    Options options = new Options();
    if (words.length == 0 || !words[0].equals("send") && !words[0].equals("receive")) {
      throw new UsageException("say send or receive");
    }
    options.sends = words[0].equals("send");
    for (int i = 1; i < words.length; i += 2) {
      if (i + 1 == words.length) throw new UsageException(words[i] + ": its value is missing");
      options.take(words[i], words[i + 1]);
    }
    if (options.address == null) throw new UsageException("give --connect HOST:PORT or --listen [ADDRESS:]PORT");
    return options;
  }

  private void take(String name, String value) throws UsageException {
    switch (name) {
      case "--connect":
      case "--listen":
        if (address != null) throw new UsageException("give one of --connect and --listen, once");
        address = value;
        listens = name.equals("--listen");
        break;
      case "--file":
        file = value;
        break;
      case "--seconds":
        seconds = number(name, value, 0.01, 86_400);
        break;
      case "--window":
        window = value;
        break;
      case "--tls":
        tls = value;
        break;
      case "--stall-seconds":
        stallMs = (int) (1000 * number(name, value, 0.1, 3600));
        break;
      default:
        throw new UsageException(name + " is no option");
    }
  }

  private static double number(String name, String value, double least, double most) throws UsageException {
    double found;
    try {
      found = Double.parseDouble(value);
    } catch (NumberFormatException error) {
      found = Double.NaN;
    }
    if (found >= least && found <= most) return found;
    throw new UsageException(name + " " + value + ": give a number from " + least + " to " + most);
  }

  /** Returns the law that --window names. */
  Law law() throws UsageException, IOException {
    if (window.equals("mdi")) return new Mdi(Matrix.own(), new Random());
    if (window.equals("none")) return Law.none();
    if (window.startsWith("fixed:")) {
      return new Law.Fixed((int) number("--window fixed:", window.substring(6), 1, 1 << 20));
    }
    throw new UsageException("--window " + window + ": choose mdi, none or fixed:N (frames of " + Wire.FRAME_BYTES + " bytes)");
  }

  /** Returns the one connection; says where it listens before it waits for it. */
  Socket open() throws UsageException, IOException, GeneralSecurityException {
    int colon = address.lastIndexOf(':');
    if (colon < 0 && !listens) throw new UsageException("--connect " + address + ": write HOST:PORT");
    String host = colon < 0 ? "127.0.0.1" : address.substring(0, colon);
    int port = (int) number("a port of", address.substring(colon + 1), listens ? 0 : 1, 65_535);
    if (!listens) {
      Socket socket = new Socket();
      socket.connect(new InetSocketAddress(host, port), CONNECT_MS);
      socket.setSoTimeout(stallMs); // the handshake's too
      return tls == null ? socket : Tls.connect(socket, host, port, tls);
    }
    try (ServerSocket listener = tls == null ? new ServerSocket() : Tls.listener(tls)) {
      listener.setSoTimeout(stallMs);
      listener.bind(new InetSocketAddress(host, port), 1);
      System.out.println("{\"event\": \"listening\", \"port\": " + listener.getLocalPort() + "}");
      Socket socket = listener.accept();
      socket.setSoTimeout(stallMs);
      return socket;
    }
  }
}
