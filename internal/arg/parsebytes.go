package arg

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

// ParseBytes reads a size such as 512MiB, 1.5GiB, 512MB or 1048576. Case does not matter.
func ParseBytes(text string) (int64, error) {
	wanted := errors.New("want a number of bytes such as 512MiB, 1.5GiB, 512MB or 1048576")
	number := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	unit, known := units[strings.ToUpper(strings.TrimSpace(text[len(number):]))]
	// Plain decimals only: other numbers of ParseFloat, such as 0x1p4, are more likely a slip than a size.
	if !known || number == "" || strings.Trim(number, "0123456789.") != "" {
		return 0, wanted
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, wanted
	}
	if n *= unit; n >= math.MaxInt64 {
		return 0, errors.New("more than any device has")
	}
	return int64(n), nil
}
