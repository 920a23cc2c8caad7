package http1test

import "strings"

// BrokenChunks are malformed bodies of chunks, each to be refused with 400.
func BrokenChunks() []string {
	return []string{
		"g\r\n", "\r\n", " 5\r\nabcde\r\n0\r\n\r\n", "-1\r\n", "+5\r\nabcde\r\n", "0x5\r\nabcde\r\n", "5 5\r\nabcde\r\n", "5\nabcde\n0\n\n",
		"5\r\nabcdef\r\n", "5\r\nabcde\n0\r\n\r\n", "5\r\nabcde\r0\r\n\r\n", "5\r\nabcde0\r\n\r\n",
		"5;a\rb\r\nabcde\r\n0\r\n\r\n", "5\r\r\nabcde\r\n0\r\n\r\n",
		"8000000000000000\r\n", "10000000000000000\r\n", "00000000000000005\r\nabcde\r\n", "fffffffffffffffff\r\n",
		strings.Repeat("0", 3000),
		"0\r\nA b\r\n\r\n", "0\r\n A: b\r\n\r\n", "0\r\nA: \x00\r\n\r\n",
	}
}

// OddChunks are bodies that package http1 refuses with 400, and net/http reads without
// taking anything behind them for a request: odd extensions of chunks, which it skips, and
// odd or long trailers.
func OddChunks() []string {
	return []string{
		"5;a\x00\r\nabcde\r\n0\r\n\r\n",
		"5;" + strings.Repeat("a", 2000) + "\r\nabcde\r\n0\r\n\r\n",
		"0\r\nA : b\r\n\r\n",
		"0\r\nA: b\n\r\n",
		"0\r\nA: " + strings.Repeat("b", 3000) + "\r\n\r\n",
		"0\r\n" + strings.Repeat("A: b\r\n", 100) + "\r\n",
	}
}
