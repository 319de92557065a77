"""FastMCP 4.x client, whose caller has to sign in.

usage: python sign_in_fm.py URL KEY PROMPT legacy|modern elicits|plain
"""

from fastmcp import Client

from sign_in import main, visit


async def answer(message, response_type, params, context):
    return await visit(params)


def connect(url, key, mode, elicits):
    return Client(url, auth=key, mode=mode, elicitation_handler=answer if elicits else None)


main(connect)
