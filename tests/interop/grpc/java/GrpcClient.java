import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Sends messages of all types, receives them, and prints the bodies: ENDPOINTS plain|tls GROUP. */
public class GrpcClient {
    private static final long LIMIT_MS = 60_000;
    private static String run;
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    public static void main(String[] arguments) throws Exception {
        String group = run = arguments[2];
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(arguments[0]).enableSsl(arguments[1].equals("tls")).build();
        Set<String> checked = new ConcurrentSkipListSet<>();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics("normal", "fifo", "delay", "transaction")
            .setTransactionChecker(message -> {
                note(checked, message);
                return TransactionResolution.COMMIT;
            }).build();
        Set<String> pushed = new ConcurrentSkipListSet<>();
        PushConsumer push = PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup(group + "-push")
            .setSubscriptionExpressions(Map.of("normal", FilterExpression.SUB_ALL, "fifo", FilterExpression.SUB_ALL))
            .setMessageListener(message -> {
                note(pushed, message);
                return ConsumeResult.SUCCESS;
            }).build();
        SimpleConsumer simple = PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Map.of("delay", FilterExpression.SUB_ALL, "transaction", FilterExpression.SUB_ALL))
            .build();
        for (int number = 0; number < 8; number++) {
            producer.send(message("normal", "normal-" + number).setTag("tag").setKeys("key").addProperty("a", "b").build());
            producer.send(message("fifo", "fifo-" + number).setMessageGroup("one").build());
        }
        producer.send(message("delay", "delayed").setDeliveryTimestamp(System.currentTimeMillis() + 2_000).build());
        send(producer, "committed").commit();
        send(producer, "rolled-back").rollback();
        send(producer, "orphaned");
        Set<String> received = new TreeSet<>();
        long end = System.currentTimeMillis() + LIMIT_MS;
        while ((received.size() < 3 || pushed.size() < 16) && System.currentTimeMillis() < end) {
            for (MessageView view : simple.receive(16, Duration.ofSeconds(15))) {
                note(received, view);
                simple.ack(view);
            }
        }
        System.out.println("received " + String.join(",", received));
        System.out.println("pushed " + String.join(",", pushed));
        System.out.println("checked " + String.join(",", checked));
        push.close();
        simple.close();
        producer.close();
        System.exit(0);
    }

    private static Transaction send(Producer producer, String body) throws Exception {
        Transaction transaction = producer.beginTransaction();
        producer.send(message("transaction", body).build(), transaction);
        return transaction;
    }

    private static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody((run + "/" + body).getBytes(StandardCharsets.UTF_8));
    }

    /** Adds the body to the set, unless it is of an earlier run. */
    private static void note(Set<String> bodies, MessageView message) {
        String body = StandardCharsets.UTF_8.decode(message.getBody()).toString();
        if (body.startsWith(run + "/")) {
            bodies.add(body.substring(run.length() + 1));
        }
    }
}
