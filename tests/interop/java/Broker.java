import org.apache.rocketmq.broker.BrokerStartup;

/**
 * The Java broker with a faster stop. At its stop, the broker waits in turn for threads that check
 * every three seconds whether to stop; this class interrupts those that sleep and have no open file.
 */
public final class Broker {
    private Broker() { }

    public static void main(String[] args) {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            Thread waker = new Thread(Broker::wake);
            waker.setDaemon(true);
            waker.start();
        }));
        BrokerStartup.main(args);
    }

    private static void wake() {
        try {
            while (true) {
                Thread.sleep(100);
                for (Thread thread : Thread.getAllStackTraces().keySet()) {
                    boolean isSleeping = thread.getState() == Thread.State.TIMED_WAITING;
                    String name = thread.getName();
                    if (isSleeping && (name.equals("NettyEventExecutor") || name.startsWith("PopReviveService"))) {
                        thread.interrupt();
                    }
                }
            }
        } catch (InterruptedException ended) {
            return;
        }
    }
}
