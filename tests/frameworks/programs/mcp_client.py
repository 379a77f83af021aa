"""A client of the Model Context Protocol by its own library: what `disttrace mcp` answers it."""

import asyncio
import json
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main():
    server = StdioServerParameters(command=sys.argv[1], args=["-m", "disttrace", "mcp"])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        found = await session.call_tool("diagnose", {"path": sys.argv[2]})
        nothing = await session.call_tool("diagnose", {"path": "/nowhere"})
        print(json.dumps([tools, found.structured_content, nothing.is_error]))


asyncio.run(main())
