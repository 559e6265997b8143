#!/bin/bash
exec python3 tools/scaling_test.py
