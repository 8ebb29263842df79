import org.apache.rocketmq.broker.BrokerStartup;

/**
 * The Java broker, which ends sooner: at its end it waits one after the other for threads that look
 * every three seconds whether they should stop; those of them that sleep, and have no file open, are
 * woken.
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
