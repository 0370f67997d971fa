package arg

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
)

// Numbered lists numbered things: "rank 2", or "ranks 0, 1 and 3". It lists 16 at most and counts the rest.
// It returns "" if there are none.
func Numbered(what string, numbers []int) string {
	const most = 16
	var words []string
	for _, n := range numbers[:min(len(numbers), most)] {
		words = append(words, strconv.Itoa(n))
	}
	if n := len(numbers); n > most {
		words = append(words, fmt.Sprintf("%d more", n-most))
	}
	last := len(words) - 1
	switch {
	case last < 0:
		return ""
	case last == 0:
		return what + " " + words[0]
	}
	return what + "s " + strings.Join(words[:last], ", ") + " and " + words[last]
}

// IsHost reports whether text is an IP address, or looks like a host name.
func IsHost(text string) bool {
	if _, err := netip.ParseAddr(text); err == nil {
		return true
	}
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	return text != "" && len(text) <= 255 && strings.Trim(text, letters) == ""
}

// OneOf returns the remedy for an unknown word: Meant, and the list of all known words.
func OneOf(word string, known []string) string {
	return Meant(word, known) + "want one of " + strings.Join(known, ", ")
}

// Meant returns a question with the nearest known word, such as "did you mean train? ", or "".
func Meant(word string, known []string) string {
	if near := Nearest(word, known); near != "" {
		return "did you mean " + near + "? "
	}
	return ""
}

// Nearest returns the first known word with the least edit distance, or "" if all are too far.
func Nearest(word string, known []string) (best string) {
	least := 1 << 30
	for _, k := range known {
		d := distance(strings.ToLower(word), strings.ToLower(k))
		if d <= max(2, len(k)/3) && d < min(len(k), least) {
			best, least = k, d
		}
	}
	return best
}

// distance returns the Levenshtein distance of two words in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}

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
