package arg

import (
	"fmt"
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
