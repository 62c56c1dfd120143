"""The winner as one folder or `.zip`: model, contract, golden data, report and digests."""
