import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** A topic of strict order: the name server returns its configured queues, whatever their current number. */
final class OrderConfig extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T"); // of 4 queues
        DefaultMQAdminExt admin = admin();
        Properties ordering = new Properties();
        ordering.setProperty("orderMessageEnable", "true");
        admin.updateNameServerConfig(ordering, List.of(namesrv));
        String broker = admin.examineBrokerClusterInfo().getBrokerAddrTable().keySet().iterator().next();
        admin.createOrUpdateOrderConf(topic, broker + ":3", false);
        equal(broker + ":3", admin.getKVConfig("ORDER_TOPIC_CONFIG", topic), "order config");
        equal(broker + ":3", admin.examineTopicRouteInfo(topic).getOrderTopicConf(), "order config of the route");
        DefaultMQProducer producer = producer();
        equal(3, producer.fetchPublishMessageQueues(topic).size(), "queues to send to");
        Inbox inbox = consume("taker", topic, "*"); // of all 4
        Set<Integer> used = new TreeSet<>();
        for (int number = 0; number < 12; number++) {
            Message message = message(topic, "t", Integer.toString(number));
            var sent = producer.send(message, (queues, it, key) -> queues.get((Integer) key % queues.size()), number);
            ok(sent);
            MessageQueue queue = sent.getMessageQueue();
            equal(number % 3, queue.getQueueId(), "queue of " + number);
            used.add(queue.getQueueId());
        }
        equal(Set.of(0, 1, 2), used, "queues");
        awaitExactly(inbox, 12);
        admin.createOrUpdateOrderConf(topic, broker + ":4", false); // replaces the entry of its broker
        equal(broker + ":4", admin.examineTopicRouteInfo(topic).getOrderTopicConf(), "order config, changed");
        admin.deleteKvConfig("ORDER_TOPIC_CONFIG", topic);
        equal(null, admin.examineTopicRouteInfo(topic).getOrderTopicConf(), "order config, deleted");
    }
}
