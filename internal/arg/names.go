package arg

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Numbered names things by their numbers: "rank 2", "ranks 0, 1 and 3", or the first of many and how many
// more. It is "" for none.
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

// IsHost reports whether text is an IP address, or looks like the name of a host.
func IsHost(text string) bool {
	if _, err := netip.ParseAddr(text); err == nil {
		return true
	}
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	return text != "" && len(text) <= 255 && strings.Trim(text, letters) == ""
}
