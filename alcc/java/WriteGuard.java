// SPDX-License-Identifier: Apache-2.0
package reinet.alcc;

import java.net.Socket;

/** Resets a socket in which a write has waited too long: sockets of this kind have a time limit for reading alone. */
final class WriteGuard {
  private final Socket socket;
  private final long mostUs;
  private final Thread thread;
  private long beganUs = -1; // below 0: nobody writes
  private boolean over;
  private boolean tooLong;

  WriteGuard(Socket socket, int mostMs) {
    this.socket = socket;
    this.mostUs = mostMs * 1000L;
    thread = new Thread(this::watch, "alcc-write-guard");
    thread.setDaemon(true);
    thread.start();
  }

  synchronized void begin() {
    beganUs = Wire.nowUs();
  }

  synchronized void end() {
    beganUs = -1;
  }

  synchronized boolean tooLong() {
    return tooLong;
  }

  synchronized void close() {
    over = true;
    notifyAll();
  }

  private void watch() {
    synchronized (this) {
      try {
        while (!over && !(tooLong = beganUs >= 0 && Wire.nowUs() - beganUs > mostUs)) {
          wait(Math.max(1, mostUs / 4000));
        }
      } catch (InterruptedException interrupted) {
        return;
      }
    }
    if (tooLong) AlccOutputStream.reset(socket);
  }
}
