package main

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// units are the suffixes of sizes.
var units = map[string]float64{
	"": 1, "B": 1,
	"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}

var errSize = errors.New("want a number of bytes such as 512MiB, 1.5GiB, 512MB or 1048576")

// parseBytes reads a size such as 512MiB, 1.5GiB, 512MB or 1048576. Case does not matter.
func parseBytes(s string) (int64, error) {
	number := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	unit, known := units[strings.ToUpper(strings.TrimSpace(s[len(number):]))]
	// Plain decimals only: what ParseFloat takes beyond them (hexadecimal, underscores, exponents,
	// signs) is more likely a slip than a size.
	if !known || number == "" || strings.Trim(number, "0123456789.") != "" {
		return 0, errSize
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, errSize
	}
	if n *= unit; n >= math.MaxInt64 {
		return 0, errors.New("more than any device has")
	}
	return int64(n), nil
}

// briefBytes writes a size in few characters: 8.7M.
func briefBytes(n int64) string {
	text := strings.TrimSuffix(strings.Replace(formatBytes(n), " ", "", 1), "iB")
	return strings.Replace(text, ".0", "", 1)
}
