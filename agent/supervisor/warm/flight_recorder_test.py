"""What flight_recorder.py tells of PyTorch's records, without PyTorch."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import flight_recorder  # noqa: E402


def call(group, number, name='all_reduce', state='scheduled', at=1, **more):
    entry = {
        'process_group': [group, ''], 'collective_seq_id': number, 'profiling_name': 'nccl:' + name, 'state': state,
        'retired': state == 'completed', 'time_created_ns': at, 'is_p2p': False, 'input_sizes': [[4]], 'output_sizes': [[4]],
        'input_dtypes': ['Float'], 'output_dtypes': ['Float'],
    }
    entry.update(more)
    return entry


class Recorder(flight_recorder._Recorder):
    def __init__(self, calls, groups):
        super(Recorder, self).__init__(None, None)
        self.told, self.names = calls, groups

    def calls(self):
        return self.told

    def groups(self):
        return {name: {'group': name + '/1', 'description': '', 'ranks': [0, 1], 'calls': {}, 'messages': [], 'used': 0}
                for name in self.names}


def record(calls, groups=('0',)):
    return json.loads(Recorder(calls, groups).record())


class FlightRecorderTest(unittest.TestCase):
    def test_the_calls_around_the_first_that_waits(self):
        calls = [call('0', number, state='completed' if number < 20 else 'scheduled') for number in range(1, 40)]
        group = record(calls)[0]
        self.assertEqual([one['number'] for one in group['calls']], list(range(16, 24)))
        self.assertEqual([one['pending'] for one in group['calls']], [False] * 4 + [True] * 4)
        self.assertEqual((group['last'], group['waits']), (39, True))

    def test_of_many_groups_also_a_small_one_in_which_this_rank_does_not_wait(self):
        names = [str(number) for number in range(30)]
        groups = record([call(name, 1, state='completed', at=int(name) + 1) for name in names], names)
        self.assertEqual(len(groups), 30)
        many = [str(number) for number in range(100)]
        groups = record([call(name, 1, state='completed', at=int(name) + 1) for name in many] + [call('3', 2)], many)
        # That which waits, then those that were used last.
        self.assertEqual([group['group'] for group in groups[:3]], ['3/1', '99/1', '98/1'])
        self.assertEqual(len(groups), 64)

    def test_messages_that_are_under_way(self):
        calls = [call('0', 0, 'send 0->1', is_p2p=True), call('0', 0, 'recv 0<-1', 'completed', is_p2p=True),
                 call('0', 0, 'recv 0<-?', is_p2p=True), call('0', 0, 'send ?', is_p2p=True)]
        group = record(calls)[0]
        self.assertEqual(group['messages'], [{'from': 0, 'to': 1, 'name': 'send'}, {'from': -1, 'to': 0, 'name': 'recv'}])
        self.assertEqual((group['calls'], group['waits']), ([], True))

    def test_entries_of_one_call(self):
        parts = [call('0', 7, input_sizes=[[size]]) for size in (1, 2)] + [call('0', 7, 'coalesced', input_sizes=[])]
        one, = record(parts)[0]['calls']
        self.assertEqual((one['number'], one['name'], one['pending']), (7, 'nccl:coalesced', True))
        self.assertEqual([part['input_sizes'] for part in one['parts']], [[[1]], [[2]]])

    def test_another_backend_has_numbers_of_its_own(self):
        of_gloo = call('0', 7)
        of_gloo['profiling_name'] = 'gloo:barrier'
        one, = record([call('0', 7), of_gloo])[0]['calls']
        self.assertEqual(one['name'], 'gloo:barrier')
        self.assertNotIn('parts', one)

    def test_what_was_called_before_the_groups_began_is_left_out(self):
        recorder = Recorder([call('0', 1, at=5), call('0', 2, at=15)], ['0'])
        recorder.since = 10
        self.assertEqual([one['number'] for one in json.loads(recorder.record())[0]['calls']], [2])


if __name__ == '__main__':
    unittest.main()
