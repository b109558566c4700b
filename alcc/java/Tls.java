// SPDX-License-Identifier: Apache-2.0
package reinet.alcc;

import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.ServerSocket;
import java.net.Socket;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLServerSocket;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManagerFactory;

/** Sockets with TLS: who listens shows a certificate, who connects checks it and the name or address in it. */
final class Tls {
  /** The store's password is taken from there: on a command line every user of the machine could read it. */
  static final String PASSWORD_VARIABLE = "REINET_ALCC_PASSWORD";

  private Tls() {}

  static ServerSocket listener(String keyStore) throws IOException, GeneralSecurityException {
    KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
    keys.init(load(keyStore), password());
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(keys.getKeyManagers(), null, null);
    return (SSLServerSocket) context.getServerSocketFactory().createServerSocket();
  }

  static Socket connect(Socket plain, String host, int port, String trustStore)
      throws IOException, GeneralSecurityException {
    TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    trust.init(load(trustStore));
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(null, trust.getTrustManagers(), null);
    SSLSocket socket = (SSLSocket) context.getSocketFactory().createSocket(plain, host, port, true);
    SSLParameters parameters = socket.getSSLParameters();
    parameters.setEndpointIdentificationAlgorithm("HTTPS");
    socket.setSSLParameters(parameters);
    socket.startHandshake();
    return socket;
  }

  private static KeyStore load(String path) throws IOException, GeneralSecurityException {
    KeyStore store = KeyStore.getInstance("PKCS12");
    try (InputStream in = new FileInputStream(path)) {
      store.load(in, password());
    }
    return store;
  }

  private static char[] password() throws IOException {
    String password = System.getenv(PASSWORD_VARIABLE);
    if (password == null) throw new IOException("--tls: put the store's password into " + PASSWORD_VARIABLE);
    return password.toCharArray();
  }
}
