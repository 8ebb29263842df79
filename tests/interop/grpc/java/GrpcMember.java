import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.java.impl.ClientImpl;

/**
 * A push consumer that runs until its input ends: ENDPOINTS GROUP TOPIC TAGS. It prints its client id, then
 * the body of each message that it receives; it fails to consume the body "fail" again.
 */
public class GrpcMember {
    private static final Set<String> SEEN = ConcurrentHashMap.newKeySet();

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(arguments[0]).enableSsl(false).build();
        PushConsumer consumer = ClientServiceProvider.loadService().newPushConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup(arguments[1])
            .setSubscriptionExpressions(Map.of(arguments[2], new FilterExpression(arguments[3])))
            .setMessageListener(GrpcMember::consume).build();
        print("id " + ((ClientImpl) consumer).getClientId());
        while (System.in.read() >= 0) { }
        consumer.close();
        System.exit(0);
    }

    private static ConsumeResult consume(MessageView message) {
        String body = StandardCharsets.UTF_8.decode(message.getBody()).toString();
        print("received " + body);
        boolean isFirst = SEEN.add(body);
        return isFirst || !body.equals("fail") ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
    }

    private static synchronized void print(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
