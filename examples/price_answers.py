"""Reply to requests for prices, until Ctrl-C or SIGTERM: a consumer that replies to each message.

Requires `kourou serve` or RocketMQ, on localhost unless NAMESRV_ADDR names another address.
"""

from __future__ import annotations

from kourou import MessageExt, Producer, PushConsumer, run

PRICES = {"o-17": "120 EUR"}


async def main() -> None:
    """Reply until a signal; the producer sends the replies of the consumer's listener."""
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
