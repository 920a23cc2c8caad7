package main

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// shape is a kind of request.
type shape struct {
	stream bool
	tokens int  // that are generated
	prompt int  // bytes of plain text; 0 is a short sentence
	client int  // of a client with a prompt of its own: its number, from 1
	grpc   bool // the engines are spoken to by gRPC
}

// eventsOf is the number of events the simulated engine sends for a stream of
// so many tokens: one with the role, one a token, one with the finish reason,
// and [DONE].
func eventsOf(tokens int) int { return tokens + 3 }

func (s shape) want() want {
	if s.stream && s.grpc {
		return want{events: manyEvents}
	}
	if s.stream {
		return want{events: eventsOf(s.tokens)}
	}
	return want{has: []byte(`"completion_tokens":` + strconv.Itoa(s.tokens) + `,`)}
}

const sentence = "What is the height of the highest mountain of the Earth, and who climbed it first? "

// body is the JSON of a chat completion. extra goes in as further fields.
func (s shape) body(extra string) string {
	prompt := sentence
	if s.prompt > 0 {
		prompt = strings.Repeat(sentence, s.prompt/len(sentence)+1)[:s.prompt]
	}
	if s.client > 0 {
		prompt = strconv.Itoa(s.client) + ". " + prompt // apart from the first block on
	}
	return fmt.Sprintf(`{"model":"sim-model","messages":[{"role":"user","content":%q}],"max_tokens":%d,"temperature":0.7,"stream":%t%s}`,
		prompt, s.tokens, s.stream, extra)
}

// of is the shape of the requests of client i, from 0.
func (s shape) of(i int) shape {
	if s.client > 0 {
		s.client = i + 1
	}
	return s
}

// wire is the request as it is sent to host.
func (s shape) wire(host, extra string) []byte {
	body := s.body(extra)
	return fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		host, len(body), body)
}

// roomDigits is the length of every room: all have as many digits, so that one
// can be written over another.
const roomDigits = 19

const firstRoom = "1000000000000000000"

// wirePair is one leg of a disaggregated request, with firstRoom as its room,
// and the position of the room's digits.
func (s shape) wirePair(host, prefillHost string, bootstrapPort int) (wire []byte, room int) {
	extra := fmt.Sprintf(`,"bootstrap_host":%q,"bootstrap_port":%d,"bootstrap_room":%s`, prefillHost, bootstrapPort, firstRoom)
	wire = s.wire(host, extra)
	return wire, bytes.LastIndex(wire, []byte(firstRoom))
}
