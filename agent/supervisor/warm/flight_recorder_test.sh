#!/bin/bash
exec python3 agent/supervisor/warm/flight_recorder_test.py
