import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends to one queue, one message after the other, until it is killed. Arguments: name server, topic, broker name,
 * queue id, and the interval in ms at which it asks for routes. Prints `ok NUMBER OFFSET` or `no NUMBER REASON`.
 */
public class Sends {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java-senders");
        producer.setNamesrvAddr(args[0]);
        producer.setPollNameServerInterval(Integer.parseInt(args[4]));
        producer.start();
        MessageQueue queue = new MessageQueue(args[1], args[2], Integer.parseInt(args[3]));
        for (long number = 1; ; number++) {
            try {
                byte[] body = (args[3] + "-" + number + "-").getBytes();
                SendResult result = producer.send(new Message(args[1], body), queue);
                String word = result.getSendStatus() == SendStatus.SEND_OK ? "ok" : "no";
                System.out.println(word + " " + number + " " + result.getQueueOffset());
            } catch (Exception e) {
                System.out.println("no " + number + " " + String.valueOf(e.getMessage()).replace('\n', ' '));
            }
            Thread.sleep(50);
        }
    }
}
