//! Uses each feature of the client, and prints what it saw: ENDPOINTS plain|tls GROUP. GROUP-ordered
//! consumes in order. `polled` is the time in seconds that a receive without messages took: the client
//! asks for 40 s, and gives up after as many. With more arguments: `exchange TOPIC COUNT` sends four
//! messages and prints COUNT that it receives; `recover TOPIC` sends and receives while its server
//! restarts; `orphan TOPIC` sends a half message, and leaves its transaction open; `check TOPIC` prints
//! what it checks and receives.

use std::collections::{BTreeSet, HashMap};
use std::env;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionChecker, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use tokio::time::sleep;

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

    async fn producer(&self, topics: &[&str]) -> Result<Producer, ClientError> {
        let mut option = ProducerOption::default();
        option.set_topics(topics.to_vec());
        let mut producer = Producer::new(option, self.client())?;
        producer.start().await?;
        Ok(producer)
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
    let producer = run.producer(&["normal", "fifo", "delay"]).await?;
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
    let dead = MessageBuilder::builder()
        .set_topic("normal")
        .set_body(run.body("dead"))
        .set_tag("dead");
    producer.send(dead.build()?).await?;
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
    let producer = committing_producer(run, "transaction", &checked).await?;
    let half = |name: &str| half(run, "transaction", name);
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
    print_ended(run, "ended", "transaction", 2, &checked).await?;
    producer.shutdown().await
}

fn half(run: &Run, topic: &str, name: &str) -> Result<impl Message, ClientError> {
    MessageBuilder::transaction_message_builder(topic, run.body(name)).build()
}

async fn checking_producer(
    run: &Run,
    topic: &str,
    checker: Box<TransactionChecker>,
) -> Result<Producer, ClientError> {
    let mut option = ProducerOption::default();
    option.set_topics(vec![topic]);
    let mut producer = Producer::new_transaction_producer(option, run.client(), checker)?;
    producer.start().await?;
    Ok(producer)
}

/// Returns a producer that commits what it checks, and adds the names of the messages to a set.
async fn committing_producer(
    run: &Arc<Run>,
    topic: &str,
    checked: &Arc<Mutex<BTreeSet<String>>>,
) -> Result<Producer, ClientError> {
    let (noted, ours) = (checked.clone(), run.clone());
    let checker = move |_, message: MessageView| {
        noted.lock().expect("no panic").extend(ours.name(&message));
        TransactionResolution::COMMIT
    };
    checking_producer(run, topic, Box::new(checker)).await
}

async fn print_ended(
    run: &Run,
    suffix: &str,
    topic: &str,
    count: usize,
    checked: &Mutex<BTreeSet<String>>,
) -> Result<(), ClientError> {
    let group = format!("{}-{}", run.group, suffix);
    let consumer = run.consumer(&group, &[topic]).await?;
    let ended = run.receive(&consumer, topic, all(), count).await?;
    print("received", ended.into_iter().collect::<BTreeSet<_>>());
    print("checked", checked.lock().expect("no panic").clone());
    consumer.shutdown().await
}

async fn orphan(run: &Run, topic: &str) -> Result<(), ClientError> {
    let checker = |_, _: MessageView| TransactionResolution::UNKNOWN;
    let producer = checking_producer(run, topic, Box::new(checker)).await?;
    producer
        .send_transaction_message(half(run, topic, "orphan")?)
        .await?;
    println!("sent");
    sleep(LIMIT).await;
    Ok(())
}

async fn check(run: &Arc<Run>, topic: &str) -> Result<(), ClientError> {
    let checked = Arc::new(Mutex::new(BTreeSet::new()));
    let producer = committing_producer(run, topic, &checked).await?;
    print_ended(run, "heirs", topic, 1, &checked).await?;
    producer.shutdown().await
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

/// Lets the invisible times of a message end until it is a dead letter.
async fn fail(run: &Run) -> Result<(), ClientError> {
    let attempts = Mutex::new(BTreeSet::new());
    let consumer = run
        .consumer(&format!("{}-dead", run.group), &["normal"])
        .await?;
    let dead = FilterExpression::new(FilterType::Tag, "dead");
    let receives = async {
        loop {
            let invisible = Duration::from_secs(10); // the proxy's minimum
            for message in consumer
                .receive_with("normal", &dead, 16, invisible)
                .await?
            {
                if run.name(&message).is_none() {
                    consumer.ack(&message).await?;
                } else {
                    let attempt = message.delivery_attempt().to_string();
                    attempts.lock().expect("no panic").insert(attempt);
                }
            }
        }
    };
    let letters: Vec<String> = tokio::select! {
        letters = read_letters(run, format!("%DLQ%{}-dead", run.group)) => letters?,
        failure = receives => return failure,
    };
    let attempts = attempts.into_inner().expect("no panic");
    print("dead", attempts.into_iter().chain(letters));
    consumer.shutdown().await
}

/// Returns the first dead letter, which creates its topic.
async fn read_letters(run: &Run, topic: String) -> Result<Vec<String>, ClientError> {
    let group = format!("{}-letters", run.group);
    let end = Instant::now() + LIMIT;
    loop {
        match run.consumer(&group, &[&topic]).await {
            Ok(consumer) => return run.receive(&consumer, &topic, all(), 1).await,
            Err(missing) if Instant::now() > end => return Err(missing),
            Err(_) => sleep(Duration::from_millis(500)).await,
        }
    }
}

async fn use_features(run: &Arc<Run>) -> Result<(), ClientError> {
    let work = async {
        send_plain(run).await?;
        let others = async {
            receive_plain(run).await?;
            run_transactions(run).await
        };
        tokio::try_join!(others, fail(run))
    };
    tokio::try_join!(work, poll_nothing(run))?;
    Ok(())
}

async fn exchange(run: &Run, topic: &str, count: usize) -> Result<(), ClientError> {
    let producer = run.producer(&[topic]).await?;
    let consumer = run.consumer(&run.group, &[topic]).await?;
    for number in 0..4 {
        let message = MessageBuilder::builder()
            .set_topic(topic)
            .set_body(run.body(&format!("rust-{}", number)));
        producer.send(message.build()?).await?;
    }
    let mut bodies = BTreeSet::new();
    let end = Instant::now() + LIMIT;
    while bodies.len() < count && Instant::now() < end {
        for message in consumer.receive(topic, &all()).await? {
            bodies.insert(String::from_utf8_lossy(message.body()).to_string());
            consumer.ack(&message).await?;
        }
    }
    print("exchanged", bodies);
    Ok(())
}

/// Adds the names of received messages; creates the consumer again whenever it fails.
async fn receive_always(run: &Run, topic: &str, received: &Mutex<BTreeSet<String>>) {
    loop {
        let Ok(consumer) = run.consumer(&run.group, &[topic]).await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        while let Ok(messages) = consumer.receive(topic, &all()).await {
            for message in messages {
                received
                    .lock()
                    .expect("no panic")
                    .extend(run.name(&message));
                let _ = consumer.ack(&message).await; // else it comes again
            }
        }
    }
}

/// Sends until eight sends succeed after a line of input; all that succeeded must arrive.
async fn recover(run: &Arc<Run>, topic: &str) -> Result<(), ClientError> {
    let received = Arc::new(Mutex::new(BTreeSet::new()));
    let (ours, to, names) = (run.clone(), topic.to_string(), received.clone());
    tokio::spawn(async move { receive_always(&ours, &to, &names).await });
    let restarted = Arc::new(AtomicBool::new(false));
    let flag = restarted.clone();
    std::thread::spawn(move || {
        flag.store(
            io::stdin().read_line(&mut String::new()).is_ok(),
            Ordering::SeqCst,
        )
    });
    let producer = run.producer(&[topic]).await?;
    let (mut sent, mut is_ready, mut after) = (BTreeSet::new(), false, 0);
    for number in 0.. {
        let is_back = restarted.load(Ordering::SeqCst);
        let name = number.to_string();
        let message = MessageBuilder::builder()
            .set_topic(topic)
            .set_body(run.body(&name));
        if producer.send(message.build()?).await.is_ok() {
            sent.insert(name);
            after += usize::from(is_back);
        }
        if after == 8 {
            break;
        }
        if !is_ready && !received.lock().expect("no panic").is_empty() {
            is_ready = true;
            println!("ready");
        }
        sleep(Duration::from_millis(100)).await;
    }
    let end = Instant::now() + LIMIT;
    while !sent.is_subset(&received.lock().expect("no panic")) {
        if Instant::now() > end {
            let count = received.lock().expect("no panic").len();
            println!("of {} came {}", sent.len(), count);
            return Ok(());
        }
        sleep(Duration::from_millis(100)).await;
    }
    println!("recovered");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), ClientError> {
    let arguments: Vec<String> = env::args().collect();
    let run = Arc::new(Run {
        endpoints: arguments[1].clone(),
        is_tls: arguments[2] == "tls",
        group: arguments[3].clone(),
    });
    match arguments.get(4).map(String::as_str) {
        Some("exchange") => {
            let count = arguments[6].parse().expect("a number of messages");
            exchange(&run, &arguments[5], count).await
        }
        Some("recover") => recover(&run, &arguments[5]).await,
        Some("orphan") => orphan(&run, &arguments[5]).await,
        Some("check") => check(&run, &arguments[5]).await,
        _ => use_features(&run).await,
    }
}
