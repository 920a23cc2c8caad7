package dispatch

import (
	"bytes"
	"encoding/json"
	"strconv"
)

func itoa(n int) string { return strconv.Itoa(n) }

func unmarshal(b []byte, to any) bool { return json.Unmarshal(b, to) == nil }

// startsJSON tells whether b begins like the JSON of an answer.
func startsJSON(b []byte) bool {
	b = bytes.TrimLeft(b, " \t\r\n")
	return len(b) > 0 && (b[0] == '{' || b[0] == '[')
}
