package engine

import (
	"bytes"

	"github.com/sluice-router/sluice/internal/openai"
)

// Bootstrap is where the legs of a pair meet.
type Bootstrap struct {
	// Host is the prefill engine's host without scheme, an IPv6 address in
	// brackets; engines join it with the port as it is.
	Host string
	// Port is the prefill engine's bootstrap port (server argument
	// disaggregation_bootstrap_port, 8998 by default). NoPort sends null.
	Port   int
	NoPort bool
}

// DPRanks are the data-parallel ranks of a pair; -1 where the worker is
// scheduled as a whole and places the request itself.
type DPRanks struct{ Prefill, Decode int }

// Same tells whether both legs get the same bytes.
func (r DPRanks) Same() bool { return r.Prefill < 0 && r.Decode < 0 }

// SGLangBootstrap adds the fields by which SGLang pairs the legs (server fields
// of GenerateReqInput and of its OpenAI routes). A batch gets lists as long as
// the batch, one room a prompt: a scalar room would be expanded by the engine to
// room, room+1, … and so take rooms nobody minted.
func SGLangBootstrap(s *openai.Splicer, p *openai.Peeked, at Bootstrap, rooms []int64) {
	if !p.IsBatch {
		s.SetString(openai.FieldBootstrapHost, at.Host)
		if at.NoPort {
			s.SetNull(openai.FieldBootstrapPort)
		} else {
			s.SetInt(openai.FieldBootstrapPort, int64(at.Port))
		}
		s.SetInt(openai.FieldBootstrapRoom, rooms[0])
		return
	}
	n := len(rooms)
	s.SetStringTimes(openai.FieldBootstrapHost, at.Host, n)
	if at.NoPort {
		s.SetNullTimes(openai.FieldBootstrapPort, n)
	} else {
		s.SetIntTimes(openai.FieldBootstrapPort, int64(at.Port), n)
	}
	s.SetInts(openai.FieldBootstrapRoom, rooms)
}

// SGLangPrefillRanks adds the rank fields of the prefill leg: which of the
// receiving server's ranks runs it.
func SGLangPrefillRanks(s *openai.Splicer, r DPRanks) {
	if r.Prefill >= 0 {
		s.SetInt(openai.FieldRoutedDPRank, int64(r.Prefill))
	}
}

// SGLangDecodeRanks adds the rank fields of the decode leg: which rank runs it
// and which rank of the other server ran its prefill.
func SGLangDecodeRanks(s *openai.Splicer, r DPRanks) {
	if r.Decode >= 0 {
		s.SetInt(openai.FieldRoutedDPRank, int64(r.Decode))
	}
	if r.Prefill >= 0 {
		s.SetInt(openai.FieldDisaggPrefillDPRank, int64(r.Prefill))
	}
}

// SGLangTransferFailure tells whether an answer reports that the hand-off
// between the legs broke. The engine ends such a request with an abort of status
// 500; either side may be the one to say so, and neither is proved guilty by it.
func SGLangTransferFailure(status int, body []byte) bool {
	if status != 500 {
		return false
	}
	low := bytes.ToLower(body[:min(len(body), 4096)])
	for _, word := range transferWords {
		if bytes.Contains(low, word) {
			return true
		}
	}
	return false
}

var transferWords = [][]byte{
	[]byte("transfer"), []byte("bootstrap"), []byte("kvpoll"), []byte("disagg"), []byte("abort"),
}
