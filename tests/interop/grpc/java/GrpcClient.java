import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Uses each feature of the client, and prints what it saw: ENDPOINTS plain|tls GROUP. With more
 * arguments: `exchange TOPIC COUNT` sends four messages and prints COUNT that it receives;
 * `recover TOPIC` sends and receives while its server restarts; `orphan TOPIC` sends a half message,
 * and leaves its transaction open; `check TOPIC` prints what it checks and receives.
 */
public class GrpcClient {
    private static final long LIMIT_MS = 60_000;
    /** A message that a killed proxy had received for a push consumer is invisible for 60 s. */
    private static final long RECOVERY_MS = 120_000;
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static ClientConfiguration configuration;
    private static String run;

    public static void main(String[] arguments) {
        int code = 0;
        try {
            run(arguments);
        } catch (Exception error) {
            error.printStackTrace();
            code = 1;
        }
        System.exit(code); // the close of a push consumer would wait for its receives, 20 s
    }

    private static void run(String[] arguments) throws Exception {
        configuration = ClientConfiguration.newBuilder()
            .setEndpoints(arguments[0]).enableSsl(arguments[1].equals("tls")).build();
        run = arguments[2];
        switch (arguments.length > 3 ? arguments[3] : "") {
            case "exchange" -> exchange(arguments[4], Integer.parseInt(arguments[5]));
            case "recover" -> recover(arguments[4]);
            case "orphan" -> orphan(arguments[4]);
            case "check" -> check(arguments[4]);
            default -> useFeatures();
        }
    }

    private static void useFeatures() throws Exception {
        Set<String> checked = ConcurrentHashMap.newKeySet();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics("normal", "fifo", "delay", "transaction", "priority")
            .setTransactionChecker(message -> {
                checked.addAll(names(message));
                return TransactionResolution.COMMIT;
            }).build();
        sendByPriority(producer);
        sendNormal(producer);
        sendOrdered(producer);
        List<Callable<String>> features = List.of(
            GrpcClient::receiveByPriority, GrpcClient::receiveByTag, GrpcClient::receiveByQuery, GrpcClient::push,
            GrpcClient::pushInOrder, () -> delayAndRecall(producer),
            () -> endTransactions(producer, checked), GrpcClient::changeInvisibleDuration,
            () -> fail("dead", "normal"), () -> fail("strict", "fifo"));
        for (Future<String> line : Executors.newCachedThreadPool().invokeAll(features)) {
            System.out.println(line.get());
        }
        producer.close();
    }

    private static void sendByPriority(Producer producer) throws Exception {
        for (int priority : new int[] {1, 3, 2}) {
            producer.send(message("priority", "" + priority).setPriority(priority).build());
        }
    }

    private static void sendNormal(Producer producer) throws Exception {
        for (int number = 0; number < 8; number++) {
            producer.send(message("normal", "normal-" + number)
                .setTag(number % 2 == 0 ? "even" : "odd").setKeys("key")
                .addProperty("number", "" + number).build());
        }
        producer.send(message("normal", "again").setTag("again").build());
        producer.send(message("normal", "dead").setTag("dead").build());
    }

    private static void sendOrdered(Producer producer) throws Exception {
        for (int number = 0; number < 8; number++) {
            producer.send(message("fifo", "fifo-" + number).setTag("all").setMessageGroup(run).build());
        }
        producer.send(message("fifo", "strict").setTag("strict").setMessageGroup(run).build());
    }

    /** Returns the priorities of messages in the order of their receipt. */
    private static String receiveByPriority() throws Exception {
        List<String> priorities = new ArrayList<>();
        try (SimpleConsumer consumer = consumer("-priority", "priority", FilterExpression.SUB_ALL)) {
            for (long end = end(); priorities.size() < 3 && System.currentTimeMillis() < end;) {
                for (MessageView message : consumer.receive(16, Duration.ofSeconds(60))) {
                    if (!names(message).isEmpty()) {
                        priorities.add("" + message.getPriority().orElseThrow());
                    }
                    consumer.ack(message);
                }
            }
        }
        return "prioritized " + String.join(",", priorities);
    }

    private static String receiveByTag() throws Exception {
        return "tagged " + sorted(receive("", "normal", new FilterExpression("even"), 4));
    }

    private static String receiveByQuery() throws Exception {
        FilterExpression query = new FilterExpression("number > 3", FilterExpressionType.SQL92);
        return "filtered " + sorted(receive("-sql", "normal", query, 4));
    }

    private static String push() throws Exception {
        return "pushed " + sorted(consume("-push", "normal", "even || odd"));
    }

    private static String pushInOrder() throws Exception {
        return "ordered " + String.join(",", consume("-ordered", "fifo", "all"));
    }

    private static String delayAndRecall(Producer producer) throws Exception {
        long now = System.currentTimeMillis();
        String handle = producer.send(
            message("delay", "recalled").setDeliveryTimestamp(now + 3_000).build()).getRecallHandle();
        producer.send(message("delay", "delayed").setDeliveryTimestamp(now + 4_000).build());
        producer.recallMessage("delay", handle);
        List<String> names = receive("-delay", "delay", FilterExpression.SUB_ALL, 1);
        boolean isEarly = System.currentTimeMillis() < now + 3_900;
        return "delayed " + (isEarly ? "early" : sorted(names));
    }

    private static String endTransactions(Producer producer, Set<String> checked) throws Exception {
        begin(producer, "transaction", "committed").commit();
        begin(producer, "transaction", "rolled-back").rollback();
        begin(producer, "transaction", "orphaned");
        String ended = sorted(receive("-ended", "transaction", FilterExpression.SUB_ALL, 2));
        return "received " + ended + "\nchecked " + sorted(checked);
    }

    private static Transaction begin(Producer producer, String topic, String name) throws Exception {
        Transaction transaction = producer.beginTransaction();
        producer.send(message(topic, name).build(), transaction);
        return transaction;
    }

    /** Makes a message visible long before its time; returns the numbers of its deliveries. */
    private static String changeInvisibleDuration() throws Exception {
        List<String> attempts = new ArrayList<>();
        try (SimpleConsumer consumer = consumer("-changed", "normal", new FilterExpression("again"))) {
            for (long end = end(); attempts.size() < 2 && System.currentTimeMillis() < end;) {
                for (MessageView message : consumer.receive(16, Duration.ofMinutes(5))) {
                    if (names(message).isEmpty()) {
                        consumer.ack(message);
                        continue;
                    }
                    attempts.add("" + message.getDeliveryAttempt());
                    if (attempts.size() == 1) {
                        consumer.changeInvisibleDuration(message, Duration.ofSeconds(1));
                    } else {
                        consumer.ack(message);
                    }
                }
            }
        }
        return "again " + String.join(",", attempts);
    }

    /** Fails a message until it is a dead letter; returns the numbers of its deliveries and the letter. */
    private static String fail(String name, String topic) throws Exception {
        Set<String> attempts = ConcurrentHashMap.newKeySet();
        pushConsumer("-" + name, topic, name, message -> {
            if (names(message).isEmpty()) {
                return ConsumeResult.SUCCESS;
            }
            attempts.add("" + message.getDeliveryAttempt());
            return ConsumeResult.FAILURE;
        });
        String letters = "%DLQ%" + run + "-" + name;
        for (long end = end(); System.currentTimeMillis() < end;) {
            try {
                List<String> names = receive("-letters", letters, FilterExpression.SUB_ALL, 1);
                return name + " " + sorted(attempts) + "," + sorted(names);
            } catch (ClientException | IllegalStateException missing) { // the first dead letter creates the topic
                Thread.sleep(500);
            }
        }
        return name + " " + sorted(attempts);
    }

    private static void exchange(String topic, int count) throws Exception {
        Set<String> bodies = new TreeSet<>();
        try (Producer producer = producer(topic);
                SimpleConsumer consumer = consumer("", topic, FilterExpression.SUB_ALL)) {
            for (int number = 0; number < 4; number++) {
                producer.send(message(topic, "java-" + number).build());
            }
            for (long end = end(); bodies.size() < count && System.currentTimeMillis() < end;) {
                for (MessageView message : consumer.receive(16, Duration.ofSeconds(60))) {
                    bodies.add(body(message));
                    consumer.ack(message);
                }
            }
        }
        System.out.println("exchanged " + String.join(",", bodies));
    }

    /** Sends until eight sends succeed after a line of input; all that succeeded must arrive. */
    private static void recover(String topic) throws Exception {
        Set<String> pushed = ConcurrentHashMap.newKeySet();
        Set<String> received = ConcurrentHashMap.newKeySet();
        Set<String> sent = new TreeSet<>();
        pushConsumer("-push", topic, "*", message -> {
            pushed.addAll(names(message));
            return ConsumeResult.SUCCESS;
        });
        SimpleConsumer consumer = consumer("", topic, FilterExpression.SUB_ALL);
        Thread receiver = new Thread(() -> {
            while (true) {
                try {
                    for (MessageView message : consumer.receive(16, Duration.ofSeconds(15))) {
                        received.addAll(names(message));
                        consumer.ack(message);
                    }
                } catch (ClientException | RuntimeException away) {
                    pause();
                }
            }
        });
        receiver.setDaemon(true);
        receiver.start();
        Producer producer = producer(topic);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        boolean isReady = false;
        int after = 0;
        for (int number = 0; after < 8; number++) {
            boolean isBack = isReady && (after > 0 || input.ready());
            try {
                producer.send(message(topic, "" + number).build());
                sent.add("" + number);
                after += isBack ? 1 : 0;
            } catch (ClientException | RuntimeException away) {
                pause();
            }
            if (!isReady && !pushed.isEmpty() && !received.isEmpty()) {
                isReady = true;
                System.out.println("ready");
            }
            pause();
        }
        for (long end = System.currentTimeMillis() + RECOVERY_MS; System.currentTimeMillis() < end;) {
            if (pushed.containsAll(sent) && received.containsAll(sent)) {
                System.out.println("recovered");
                return;
            }
            pause();
        }
        System.out.println("of " + sent.size() + " came " + pushed.size() + " and " + received.size());
    }

    private static void orphan(String topic) throws Exception {
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic)
            .setTransactionChecker(message -> TransactionResolution.UNKNOWN).build();
        begin(producer, topic, "orphan");
        System.out.println("sent");
        System.in.read();
    }

    private static void check(String topic) throws Exception {
        Set<String> checked = ConcurrentHashMap.newKeySet();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic)
            .setTransactionChecker(message -> {
                checked.addAll(names(message));
                return TransactionResolution.COMMIT;
            }).build();
        List<String> received = receive("-heirs", topic, FilterExpression.SUB_ALL, 1);
        System.out.println("received " + sorted(received) + "\nchecked " + sorted(checked));
        producer.close();
    }

    private static void pause() {
        try {
            Thread.sleep(100);
        } catch (InterruptedException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private static Producer producer(String topic) throws ClientException {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
    }

    private static SimpleConsumer consumer(String suffix, String topic, FilterExpression filter)
            throws ClientException {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(run + suffix).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Map.of(topic, filter)).build();
    }

    private static PushConsumer pushConsumer(String suffix, String topic, String tags, MessageListener listener)
            throws ClientException {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(run + suffix).setMessageListener(listener)
            .setSubscriptionExpressions(Map.of(topic, new FilterExpression(tags))).build();
    }

    /** Returns the names of messages that a simple consumer receives and acknowledges. */
    private static List<String> receive(String suffix, String topic, FilterExpression filter, int count)
            throws Exception {
        List<String> names = new ArrayList<>();
        try (SimpleConsumer consumer = consumer(suffix, topic, filter)) {
            for (long end = end(); names.size() < count && System.currentTimeMillis() < end;) {
                for (MessageView message : consumer.receive(16, Duration.ofSeconds(60))) {
                    names.addAll(names(message));
                    consumer.ack(message);
                }
            }
        }
        return names;
    }

    /** Returns the names of eight messages in the order in which a push consumer gets them. */
    private static List<String> consume(String suffix, String topic, String tags) throws Exception {
        BlockingQueue<String> pushed = new LinkedBlockingQueue<>();
        pushConsumer(suffix, topic, tags, message -> {
            pushed.addAll(names(message));
            return ConsumeResult.SUCCESS;
        });
        Set<String> names = new LinkedHashSet<>();
        for (long end = end(); names.size() < 8 && System.currentTimeMillis() < end;) {
            String name = pushed.poll(1, TimeUnit.SECONDS);
            if (name != null) {
                names.add(name);
            }
        }
        return new ArrayList<>(names);
    }

    private static MessageBuilder message(String topic, String name) {
        return PROVIDER.newMessageBuilder().setTopic(topic)
            .setBody((run + "/" + name).getBytes(StandardCharsets.UTF_8));
    }

    private static String body(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }

    /** Returns the name in a message's body; nothing if the message is of another run. */
    private static List<String> names(MessageView message) {
        String body = body(message);
        return body.startsWith(run + "/") ? List.of(body.substring(run.length() + 1)) : List.of();
    }

    private static String sorted(Collection<String> names) {
        return String.join(",", new TreeSet<>(names));
    }

    private static long end() {
        return System.currentTimeMillis() + LIMIT_MS;
    }
}
