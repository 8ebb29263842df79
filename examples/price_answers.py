"""Answer questions for prices, until Ctrl-C or SIGTERM: a consumer that replies to each message.

Needs a running `kourou serve`, or any RocketMQ; NAMESRV_ADDR says where, unless it is here.
"""

from __future__ import annotations

import os

from kourou import ConsumeFromWhere, MessageExt, Producer, PushConsumer, PushConsumerConfig, run

NAMESRV = os.environ.get("NAMESRV_ADDR", "localhost:9876")
PRICES = {"o-17": "120 EUR"}


async def main() -> None:
    """Reply until a signal; the producer sends what the consumer's listener answers."""
    config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer = PushConsumer("price-answers", NAMESRV, config=config)
    consumer.subscribe("PriceAsked")
    async with Producer("price-answers", NAMESRV) as producer:

        @consumer.listen
        async def answer(question: MessageExt) -> None:
            price = PRICES.get(question.body.decode(), "no such order")
            await producer.reply(question, price.encode())

        async with consumer:
            await consumer.run_forever()


run(main())
