// Package rawmessage lets grpc-go carry messages that are encoded already: those of engines,
// which dialects encode, and those between members of a cluster.
package rawmessage

import "google.golang.org/grpc/mem"

// Message is one message in its encoded form. It is what [Codec] takes and gives.
type Message struct {
	Data mem.BufferSlice
	flat []byte // of Data that came in several pieces
}

// Codec passes messages through as they are. The codec is its name, which is part of the
// content type; it takes and gives nothing but a *[Message].
type Codec string

// Name implements encoding.CodecV2.
func (c Codec) Name() string { return string(c) }

// Marshal implements encoding.CodecV2. grpc-go frees what it gets.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	m := v.(*Message)
	m.Data.Ref()
	return m.Data, nil
}

// Unmarshal implements encoding.CodecV2.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	m := v.(*Message)
	data.Ref()
	m.Data = data
	return nil
}

// Bytes are the message as one piece, valid until Free. The buffer that it takes to join
// several is kept for the next message if it is not larger than keep bytes.
func (m *Message) Bytes(keep int) []byte {
	switch len(m.Data) {
	case 0:
		return nil
	case 1:
		return m.Data[0].ReadOnlyData()
	}
	n := m.Data.Len()
	if cap(m.flat) < n || cap(m.flat) > keep {
		m.flat = make([]byte, n)
	}
	m.flat = m.flat[:n]
	m.Data.CopyTo(m.flat)
	return m.flat
}

// Free gives the message back to grpc-go. It may be called any number of times.
func (m *Message) Free() {
	if m.Data != nil {
		m.Data.Free()
		m.Data = nil
	}
}
