"""Answer questions for prices, until Ctrl-C or SIGTERM: a consumer that replies to each message.

Needs a running `kourou serve`, or any RocketMQ; NAMESRV_ADDR says where, unless it is here.
"""

from __future__ import annotations

from kourou import MessageExt, Producer, PushConsumer, run

PRICES = {"o-17": "120 EUR"}


async def main() -> None:
    """Reply until a signal; the producer sends what the consumer's listener answers."""
    consumer = PushConsumer("price-answers", start="earliest")
    consumer.subscribe("PriceAsked")
    async with Producer("price-answers") as producer:

        @consumer.listen
        async def answer(question: MessageExt) -> None:
            price = PRICES.get(question.body.decode(), "no such order")
            await producer.reply(question, price.encode())

        async with consumer:
            await consumer.run_forever()


run(main())
