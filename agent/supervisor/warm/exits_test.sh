#!/bin/bash
exec python3 agent/supervisor/warm/exits_test.py
