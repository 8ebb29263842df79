import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;

/** A client namespace (of release 4) is transparent: names are wrapped in requests and unwrapped in answers. */
final class Namespace extends Feature {
    @Override void run() throws Exception {
        String space = prefix + "space";
        String topic = topic("T"); // what is stored is space%topic
        DefaultMQProducer producer = producer(new DefaultMQProducer(space, group("producer")));
        Inbox inbox = new Inbox();
        Inbox failed = new Inbox();
        DefaultMQPushConsumer consumer = consumer(new DefaultMQPushConsumer(space, group("taker")));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            if (text(messages.get(0)).equals("2") && messages.get(0).getReconsumeTimes() == 0) {
                failed.add(messages);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            inbox.add(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        start(consumer);
        send(producer, topic, "t", 0, 4);
        awaitExactly(inbox, 4);
        equal(Set.of("0", "1", "2", "3"), inbox.distinct(), "messages");
        equal(1, failed.size(), "failures");
        for (MessageExt message : inbox.all()) {
            equal(topic, message.getTopic(), "the topic's own name");
        }
        DefaultMQPullConsumer outside = reader("outside");
        equal(4, readAll(outside, space + "%" + topic).size(), "messages outside of the namespace");
        equal(0, readAll(outside, topic).size(), "messages of the bare name");
    }
}
