//! Sends messages of all types, receives them with simple consumers, and prints the bodies:
//! ENDPOINTS plain|tls GROUP. GROUP-ordered consumes in order. `polled` is the time in seconds that a
//! receive without messages took: the client asks for 40 s, and gives up after as many.

use std::collections::{BTreeSet, HashMap};
use std::env;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};

const LIMIT: Duration = Duration::from_secs(60);

/// One run of the program.
struct Run {
    endpoints: String,
    is_tls: bool,
    group: String,
}

impl Run {
    fn client(&self) -> ClientOption {
        let mut option = ClientOption::default();
        option.set_access_url(&self.endpoints);
        option.set_enable_tls(self.is_tls);
        option
    }

    fn body(&self, name: &str) -> Vec<u8> {
        format!("{}/{}", self.group, name).into_bytes()
    }

    /// Returns the name in the body of a message; None if it is of another run.
    fn name(&self, message: &MessageView) -> Option<String> {
        let body = String::from_utf8(message.body().to_vec()).ok()?;
        let (run, name) = body.split_once('/')?;
        (run == self.group).then(|| name.to_string())
    }

    async fn consumer(&self, group: &str, topics: &[&str]) -> Result<SimpleConsumer, ClientError> {
        let mut option = SimpleConsumerOption::default();
        option.set_consumer_group(group);
        option.set_topics(topics.to_vec());
        let mut consumer = SimpleConsumer::new(option, self.client())?;
        consumer.start().await?;
        Ok(consumer)
    }

    /// Returns the names of messages in the order of their receipt.
    async fn receive(
        &self,
        consumer: &SimpleConsumer,
        topic: &str,
        filter: FilterExpression,
        count: usize,
    ) -> Result<Vec<String>, ClientError> {
        let mut names = Vec::new();
        let end = Instant::now() + LIMIT;
        while names.len() < count && Instant::now() < end {
            for message in consumer.receive(topic, &filter).await? {
                if let Some(name) = self.name(&message) {
                    names.push(name);
                }
                consumer.ack(&message).await?;
            }
        }
        Ok(names)
    }
}

fn all() -> FilterExpression {
    FilterExpression::new(FilterType::Tag, "*")
}

fn print(what: &str, names: impl IntoIterator<Item = String>) {
    println!(
        "{} {}",
        what,
        names.into_iter().collect::<Vec<_>>().join(",")
    );
}

async fn send_plain(run: &Run) -> Result<(), ClientError> {
    let mut option = ProducerOption::default();
    option.set_topics(vec!["normal", "fifo", "delay"]);
    let mut producer = Producer::new(option, run.client())?;
    producer.start().await?;
    let normal = |number: usize| {
        MessageBuilder::builder()
            .set_topic("normal")
            .set_body(run.body(&format!("normal-{}", number)))
            .set_tag(if number % 2 == 0 { "even" } else { "odd" })
            .set_keys(vec!["key"])
            .set_properties(HashMap::from([("number", number.to_string())]))
            .build()
    };
    for number in 0..6 {
        producer.send(normal(number)?).await?;
    }
    producer.batch_send(vec![normal(6)?, normal(7)?]).await?;
    for number in 0..8 {
        let body = run.body(&format!("fifo-{}", number));
        let message = MessageBuilder::fifo_message_builder("fifo", body, &run.group);
        producer.send(message.build()?).await?;
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a time after 1970");
    let at = now.as_secs() as i64 + 2;
    let delayed = MessageBuilder::delay_message_builder("delay", run.body("delayed"), at);
    producer.send(delayed.build()?).await?;
    producer.shutdown().await
}

async fn receive_plain(run: &Run) -> Result<(), ClientError> {
    let consumer = run.consumer(&run.group, &["normal", "delay"]).await?;
    let sql = run
        .consumer(&format!("{}-sql", run.group), &["normal"])
        .await?;
    let ordered = run
        .consumer(&format!("{}-ordered", run.group), &["fifo"])
        .await?;
    let even = FilterExpression::new(FilterType::Tag, "even");
    let greater = FilterExpression::new(FilterType::Sql, "number > 3");
    let tagged = run.receive(&consumer, "normal", even, 4).await?;
    print("tagged", tagged.into_iter().collect::<BTreeSet<_>>());
    let filtered = run.receive(&sql, "normal", greater, 4).await?;
    print("filtered", filtered.into_iter().collect::<BTreeSet<_>>());
    print("ordered", run.receive(&ordered, "fifo", all(), 8).await?);
    print("delayed", run.receive(&consumer, "delay", all(), 1).await?);
    for one in [consumer, sql, ordered] {
        one.shutdown().await?;
    }
    Ok(())
}

async fn run_transactions(run: &Arc<Run>) -> Result<(), ClientError> {
    let checked = Arc::new(Mutex::new(BTreeSet::new()));
    let mut option = ProducerOption::default();
    option.set_topics(vec!["transaction"]);
    let (noted, ours) = (checked.clone(), run.clone());
    let mut producer = Producer::new_transaction_producer(
        option,
        run.client(),
        Box::new(move |_, message| {
            noted.lock().expect("no panic").extend(ours.name(&message));
            TransactionResolution::COMMIT
        }),
    )?;
    producer.start().await?;
    let half = |name: &str| {
        MessageBuilder::transaction_message_builder("transaction", run.body(name)).build()
    };
    producer
        .send_transaction_message(half("committed")?)
        .await?
        .commit()
        .await?;
    producer
        .send_transaction_message(half("rolled-back")?)
        .await?
        .rollback()
        .await?;
    producer.send_transaction_message(half("orphaned")?).await?;
    let consumer = run
        .consumer(&format!("{}-ended", run.group), &["transaction"])
        .await?;
    let ended = run.receive(&consumer, "transaction", all(), 2).await?;
    print("received", ended.into_iter().collect::<BTreeSet<_>>());
    print("checked", checked.lock().expect("no panic").clone());

    producer.shutdown().await?;
    consumer.shutdown().await
}

async fn poll_nothing(run: &Run) -> Result<(), ClientError> {
    let consumer = run
        .consumer(&format!("{}-idle", run.group), &["empty"])
        .await?;
    let begin = Instant::now();
    assert!(consumer.receive("empty", &all()).await?.is_empty());
    print("polled", [begin.elapsed().as_secs().to_string()]);
    consumer.shutdown().await
}

#[tokio::main]
async fn main() -> Result<(), ClientError> {
    let arguments: Vec<String> = env::args().collect();
    let run = Arc::new(Run {
        endpoints: arguments[1].clone(),
        is_tls: arguments[2] == "tls",
        group: arguments[3].clone(),
    });
    let work = async {
        send_plain(&run).await?;
        receive_plain(&run).await?;
        run_transactions(&run).await
    };
    tokio::try_join!(work, poll_nothing(&run))?;
    Ok(())
}
