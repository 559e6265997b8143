#!/bin/bash
exec python3 python/cadre_test.py
