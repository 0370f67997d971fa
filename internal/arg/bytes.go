package arg

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes formats a size such as 1.5 MiB.
func Bytes(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.size), u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// Size formats a size that users may copy as a limit, such as 1572864 bytes (1.5 MiB).
func Size(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%d bytes (%s)", n, Bytes(n))
}

var units = map[string]float64{
	"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}

// ParseBytes parses a size such as 512MiB, 1.5GiB, 512MB or 1048576, in any case.
func ParseBytes(text string) (int64, error) {
	number := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	unit, known := units[strings.ToUpper(strings.TrimSpace(text[len(number):]))]
	n, err := strconv.ParseFloat(number, 64)
	// ParseFloat also reads numbers such as 0x1p4, which are more likely a slip than a size.
	if !known || err != nil || strings.Trim(number, "0123456789.") != "" {
		return 0, errors.New("want a number of bytes such as 512MiB, 1.5GiB, 512MB or 1048576")
	}
	if n *= unit; n >= math.MaxInt64 {
		return 0, errors.New("more than any device has")
	}
	return int64(n), nil
}
